"""Kernels against ONNX Runtime's own: the same bits, or the node stays."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.graph.passes import edit, scratch
from epctx.graph.passes.fold import FoldConstantsPass
from epctx.graph.passes.kernels import arithmetic, movement
from epctx.graph.passes.kernels.operation import Declined, Operation
from epctx.graph.passes.scratch import Scratch
from tests.kit import onnx_text, optimizing

DATA = "int32[2,3,4] x = {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23}"
FLOATS = "float[2,3] f = {1.5, -2.0, 0.1, -0.0, 3e38, 1e-40}"

FOLDED = {
    "identity": f"(int32[2,3,4] y) <{DATA}> {{ y = Identity(x) }}",
    "constant of shape": "(float[2,3] y) <int64[2] s = {2,3}> { y = ConstantOfShape(s) }",
    "constant of shape, filled": (
        "(int8[2,3] y) <int64[2] s = {2,3}> { y = ConstantOfShape <value = int8[1] {7}> (s) }"
    ),
    "constant of empty shape": (
        "(float y) <int64[0] s = {}> { y = ConstantOfShape <value = float[1] {7}> (s) }"
    ),
    "transpose": f"(int32[4,2,3] y) <{DATA}> {{ y = Transpose <perm = [2,0,1]> (x) }}",
    "transpose, reversed": f"(int32[4,3,2] y) <{DATA}> {{ y = Transpose (x) }}",
    "reshape": f"(int32[6,4] y) <{DATA}, int64[2] s = {{-1, 4}}> {{ y = Reshape(x, s) }}",
    "reshape, copied dimension": (
        f"(int32[2,12] y) <{DATA}, int64[2] s = {{0, 12}}> {{ y = Reshape(x, s) }}"
    ),
    "reshape of a transposition": (
        f"(int32[24] y) <{DATA}, int64[1] s = {{24}}> {{ t = Transpose(x) y = Reshape(t, s) }}"
    ),
    "reshape, allowzero": (
        "(float[0,3] y) <float[3,0] e = {}, int64[2] s = {0, 3}>"
        " { y = Reshape <allowzero = 1> (e, s) }"
    ),
    "flatten": f"(int32[6,4] y) <{DATA}> {{ y = Flatten <axis = 2> (x) }}",
    "flatten, from the end": f"(int32[6,4] y) <{DATA}> {{ y = Flatten <axis = -1> (x) }}",
    "squeeze": "(int32[2] y) <int32[1,2,1] o = {1,2}> { y = Squeeze(o) }",
    "squeeze, axes": (
        "(int32[1,2] y) <int32[1,2,1] o = {1,2}, int64[1] a = {-1}> { y = Squeeze(o, a) }"
    ),
    "unsqueeze": (
        "(int32[1,2,1] y) <int32[2] o = {1,2}, int64[2] a = {0,-1}> { y = Unsqueeze(o, a) }"
    ),
    "expand": "(int32[3,2] y) <int32[2] o = {1,2}, int64[2] s = {3,1}> { y = Expand(o, s) }",
    "tile": f"(int32[4,3,12] y) <{DATA}, int64[3] r = {{2,1,3}}> {{ y = Tile(x, r) }}",
    "concat": f"(int32[2,6,4] y) <{DATA}> {{ y = Concat <axis = 1> (x, x) }}",
    "concat, last axis": f"(int32[2,3,8] y) <{DATA}> {{ y = Concat <axis = -1> (x, x) }}",
    "split": f"(int32[2,1,4] y, int32[2,2,4] z) <{DATA}, int64[2] s = {{1,2}}>"
    " { y, z = Split <axis = 1> (x, s) }",
    "split, parts": f"(int32[2,3,2] y, int32[2,3,2] z) <{DATA}>"
    " { y, z = Split <axis = -1, num_outputs = 2> (x) }",
    "split, uneven parts": f"(int32[2,2,4] y, int32[2,1,4] z) <{DATA}>"
    " { y, z = Split <axis = 1, num_outputs = 2> (x) }",
    "slice": (
        f"(int32[1,3,2] y) <{DATA}, int64[2] b = {{1,0}}, int64[2] e = {{9,-2}},"
        " int64[2] a = {0,-1}> { y = Slice(x, b, e, a) }"
    ),
    "slice, steps": (
        f"(int32[2,3,2] y) <{DATA}, int64[1] b = {{0}}, int64[1] e = {{4}}, int64[1] a = {{2}},"
        " int64[1] s = {2}> { y = Slice(x, b, e, a, s) }"
    ),
    "slice, backwards": (
        f"(int32[2,3,4] y) <{DATA}, int64[1] b = {{-1}}, int64[1] e = {{-9223372036854775807}},"
        " int64[1] a = {2}, int64[1] s = {-1}> { y = Slice(x, b, e, a, s) }"
    ),
    "slice, backwards from beyond": (
        f"(int32[2,3,2] y) <{DATA}, int64[1] b = {{99}}, int64[1] e = {{-3}}, int64[1] a = {{2}},"
        " int64[1] s = {-1}> { y = Slice(x, b, e, a, s) }"
    ),
    "slice to nothing": (
        f"(int32[2,3,0] y) <{DATA}, int64[1] b = {{3}}, int64[1] e = {{1}}, int64[1] a = {{2}}>"
        " { y = Slice(x, b, e, a) }"
    ),
    "gather": f"(int32[2,2,4] y) <{DATA}, int64[2] i = {{-1,0}}> {{ y = Gather <axis = 1>(x, i) }}",
    "gather, scalar": f"(int32[2,3] y) <{DATA}, int64 i = {{2}}> {{ y = Gather <axis = 2>(x, i) }}",
    "gather elements": (
        "(int32[2,2] y) <int32[3,2] o = {1,2,3,4,5,6}, int64[2,2] i = {0,-1,2,0}>"
        " { y = GatherElements(o, i) }"
    ),
    "gather nd": f"(int32[2,4] y) <{DATA}, int64[2,2] i = {{0,1,1,-1}}> {{ y = GatherND(x, i) }}",
    "scatter nd": (
        "(int32[4] y) <int32[4] o = {1,2,3,4}, int64[2,1] i = {3,0}, int32[2] u = {7,8}>"
        " { y = ScatterND(o, i, u) }"
    ),
    "scatter elements": (
        "(int32[2,2] y) <int32[2,2] o = {1,2,3,4}, int64[1,2] i = {1,0}, int32[1,2] u = {7,8}>"
        " { y = ScatterElements(o, i, u) }"
    ),
    "where": (
        "(float[2,2] y) <float[2,2] a = {1.5, -0.0, 3e38, 1e-40}, bool[2] c = {1,0}, float z = {9}>"
        " { y = Where(c, a, z) }"
    ),
    "pad": (
        f"(float[3,5] y) <{FLOATS}, int64[4] p = {{0,1,1,1}}, float v = {{2.5}}>"
        " { y = Pad(f, p, v) }"
    ),
    "pad by nothing": f"(float[2,4] y) <{FLOATS}, int64[4] p = {{0,0,0,1}}> {{ y = Pad(f, p) }}",
    "pad by the edge": (
        f'(float[3,3] y) <{FLOATS}, int64[4] p = {{0,0,1,0}}> {{ y = Pad <mode = "edge"> (f, p) }}'
    ),
    "pad by a reflection, one axis": (
        f"(float[2,6] y) <{FLOATS}, int64[2] p = {{1,2}}, int64[1] a = {{-1}}>"
        ' { y = Pad <mode = "reflect"> (f, p, , a) }'
    ),
    "depth to space": (
        "(float[1,1,2,2] y) <float[1,4,1,1] o = {1,2,3,4}> { y = DepthToSpace <blocksize = 2> (o) }"
    ),
    "depth to space, CRD": (
        "(float[1,2,2,2] y) <float[1,8,1,1] o = {1,2,3,4,5,6,7,8}>"
        ' { y = DepthToSpace <blocksize = 2, mode = "CRD"> (o) }'
    ),
    "space to depth": (
        "(float[1,4,1,1] y) <float[1,1,2,2] o = {1,2,3,4}> { y = SpaceToDepth <blocksize = 2> (o) }"
    ),
    "trilu": f"(float[2,3] y) <{FLOATS}, int64 k = {{1}}> {{ y = Trilu (f, k) }}",
    "trilu, lower": f"(float[2,3] y) <{FLOATS}> {{ y = Trilu <upper = 0> (f) }}",
    "compress": (
        f"(int32[2,3,2] y) <{DATA}, bool[4] c = {{1,0,0,1}}> {{ y = Compress <axis = 2> (x, c) }}"
    ),
    "compress, flat": (f"(int32[2] y) <{DATA}, bool[4] c = {{1,0,0,1}}> {{ y = Compress (x, c) }}"),
    "one hot": (
        "(float[3,4] y) <int64[3] i = {0,-1,7}, int64[1] d = {4}, float[2] v = {0.5,2.0}>"
        " { y = OneHot(i, d, v) }"
    ),
    "one hot, first axis": (
        "(float[4,3] y) <int64[3] i = {0,-1,7}, int64[1] d = {4}, float[2] v = {0.5,2.0}>"
        " { y = OneHot <axis = 0> (i, d, v) }"
    ),
    "non-zero": "(int64[2,3] y) <int32[2,2] o = {1,0,2,3}> { y = NonZero(o) }",
    "range": "(int64[4] y) <int64 b = {7}, int64 e = {0}, int64 d = {-2}> { y = Range(b, e, d) }",
    "range of nothing": (
        "(int64[0] y) <int64 b = {7}, int64 e = {0}, int64 d = {2}> { y = Range(b, e, d) }"
    ),
    "eye like": "(float[2,3] y) <float[2,3] o = {1,2,3,4,5,6}> { y = EyeLike <k = 1> (o) }",
    "size": f"(int64 y) <{DATA}> {{ y = Size(x) }}",
    "shape": f"(int64[2] y) <{DATA}> {{ y = Shape <start = -2> (x) }}",
    "add": "(int32[2] y) <int32[2] a = {2147483647,5}, int32 b = {1}> { y = Add(a, b) }",
    "sub": "(uint8[2] y) <uint8[2] a = {0,5}, uint8 b = {1}> { y = Sub(a, b) }",
    "mul": "(int64[2] y) <int64[2] a = {-3,5}, int64 b = {7}> { y = Mul(a, b) }",
    "div towards zero": (
        "(int64[4] y) <int64[4] a = {7,-7,7,-7}, int64[4] b = {2,2,-2,-2}> { y = Div(a, b) }"
    ),
    "div, unsigned": "(uint8[2] y) <uint8[2] a = {255,7}, uint8 b = {2}> { y = Div(a, b) }",
    "mod": "(int64[4] y) <int64[4] a = {7,-7,7,-7}, int64[4] b = {3,3,-3,-3}> { y = Mod(a, b) }",
    "fmod": (
        "(int64[4] y) <int64[4] a = {7,-7,7,-7}, int64[4] b = {3,3,-3,-3}>"
        " { y = Mod <fmod = 1> (a, b) }"
    ),
    "neg": "(int32[2] y) <int32[2] a = {3,-4}> { y = Neg(a) }",
    "abs": "(int32[2] y) <int32[2] a = {3,-4}> { y = Abs(a) }",
    "sign": "(int32[3] y) <int32[3] a = {3,-4,0}> { y = Sign(a) }",
    "max": "(int32[2] y) <int32[2] a = {3,-4}, int32 b = {1}, int32 c = {2}> { y = Max(a, b, c) }",
    "min": "(int32[2] y) <int32[2] a = {3,-4}, int32 b = {1}> { y = Min(a, b) }",
    "shift left": (
        '(uint8[2] y) <uint8[2] a = {129,1}, uint8 b = {1}> { y = BitShift <direction="LEFT">(a,b)}'
    ),
    "shift right": (
        '(uint8[2] y) <uint8[2] a={129,1}, uint8 b={7}> { y = BitShift <direction="RIGHT">(a, b)}'
    ),
    "bitwise": (
        "(int32[2] y) <int32[2] a = {12,-1}, int32[2] b = {10,7}>"
        " { c = BitwiseAnd(a,b) d = BitwiseOr(c,b) e = BitwiseXor(d,a) y = BitwiseNot(e) }"
    ),
    "logic": (
        "(bool[4] y) <bool[4] a = {0,0,1,1}, bool[4] b = {0,1,0,1}>"
        " { c = And(a,b) d = Or(c,b) e = Xor(d,a) y = Not(e) }"
    ),
    "comparisons": (
        "(bool[3] y) <int32[3] a = {1,2,3}, int32 b = {2}>"
        " { c = Less(a,b) d = LessOrEqual(a,b) e = Greater(a,b) f = GreaterOrEqual(a,b)"
        " g = Equal(a,b) h = Or(c,g) i = And(d,f) j = Xor(h,e) y = Or(i,j) }"
    ),
    "reduce": (
        f"(int32[2,1,4] y, int32 z) <{DATA}, int64[1] a = {{1}}>"
        " { y = ReduceMax(x, a) z = ReduceSum <keepdims = 0> (x) }"
    ),
    "reduce to a shape's size": (
        "(int64 y, int64[1] z) <int64[3] s = {2,3,4}>"
        " { y = ReduceProd <keepdims = 0> (s) z = ReduceMin (s) }"
    ),
    "reduce nothing": (
        "(int64[2] y) <int64[2] s = {2,3}, int64[0] a = {}>"
        " { y = ReduceSum <noop_with_empty_axes = 1> (s, a) }"
    ),
    "cumulative sum": (
        "(int32[2,3] y) <int32[2,3] o = {1,2,3,4,5,6}, int64 a = {1}>"
        " { y = CumSum <exclusive = 1, reverse = 1> (o, a) }"
    ),
    "cast": f"(double[2,3] y) <{FLOATS}> {{ y = Cast <to = 11> (f) }}",
    "cast like": ("(int8[3] y) <int32[3] a = {1,-2,300}, int8 b = {0}> { y = CastLike(a, b) }"),
}


@pytest.mark.parametrize("graph", FOLDED.values(), ids=FOLDED.keys())
def test_folds_to_what_onnxruntime_computes(graph: str) -> None:
    result = optimizing.check(onnx_text.model(f"g () => {graph}"), {}, "fold-constants")
    assert set(optimizing.ops(result)) <= {"Identity"}


STAYS = {
    "division by zero": "(int32 y) <int32 a = {1}, int32 b = {0}> { y = Div(a, b) }",
    "modulo zero": "(int32 y) <int32 a = {1}, int32 b = {0}> { y = Mod(a, b) }",
    "a quotient out of range": (
        "(int32 y) <int32 a = {-2147483648}, int32 b = {-1}> { y = Div(a, b) }"
    ),
    "shift by the whole width": (
        '(uint8 y) <uint8 a = {1}, uint8 b = {8}> { y = BitShift <direction="LEFT"> (a, b) }'
    ),
    "float to integer out of range": "(int8 y) <float a = {128.0}> { y = Cast <to = 3> (a) }",
    "float to unsigned out of range": "(uint8 y) <float a = {-1.0}> { y = Cast <to = 2> (a) }",
    "infinity to integer": "(int64 y) <float a = {inf}> { y = Cast <to = 7> (a) }",
    "NaN to integer": "(int64 y) <float a = {nan}> { y = Cast <to = 7> (a) }",
    "NaN to another float": "(double y) <float a = {nan}> { y = Cast <to = 11> (a) }",
    "a float that float16 rounds twice": (
        "(float16 y) <double a = {1.00048828125000023}> { y = Cast <to = 10> (a) }"
    ),
    "float to text": "(string y) <float a = {1.5}> { y = Cast <to = 8> (a) }",
    "float to 8 bits": "(float8e4m3fn y) <float a = {1.5}> { y = Cast <to = 17> (a) }",
    "float to 4 bits": "(int4[2] y) <float[2] a = {1.5, 1}> { y = Cast <to = 22> (a) }",
    "an index out of range": "(int32 y) <int32[2] a = {1,2}, int64 i = {2}> { y = Gather(a, i) }",
    "two updates of one element": (
        "(int32[2] y) <int32[2] a = {1,2}, int64[2,1] i = {0,0}, int32[2] u = {3,4}>"
        " { y = ScatterND(a, i, u) }"
    ),
    "a scatter that adds": (
        "(int32[2] y) <int32[2] a = {1,2}, int64[1,1] i = {0}, int32[1] u = {3}>"
        ' { y = ScatterND <reduction = "add"> (a, i, u) }'
    ),
    "a shift backwards": (
        '(int8 y) <int8 a = {1}, int8 b = {-1}> { y = BitShift <direction="LEFT"> (a, b) }'
    ),
    "a range of more than there is": (
        "(int64[N] y) <int64 b = {0}, int64 e = {9223372036854775807}, int64 d = {1}>"
        " { y = Range(b, e, d) }"
    ),
    "a fill of more than there is": (
        "(float[N,M,K] y) <int64[3] s = {9223372036854775807, 2, 2}> { y = ConstantOfShape(s) }"
    ),
    "a range without an end": (
        "(int64[N] y) <int64 b = {7}, int64 e = {0}, int64 d = {0}> { y = Range(b, e, d) }"
    ),
    "a range of floats": (
        "(float[N] y) <float b = {0}, float e = {1}, float d = {0.1}> { y = Range(b, e, d) }"
    ),
    "pads that cut": "(float[1] y) <float[2] f = {1,2}, int64[2] p = {-1,0}> { y = Pad(f, p) }",
    "a choice of -0.0": (
        "(float[2] y) <float[2] a = {1,2}, float z = {-0.0}, bool[2] c = {1,0}>"
        " { y = Where(c, a, z) }"
    ),
    "float arithmetic": "(float y) <float a = {1}, float b = {2}> { y = Add(a, b) }",
    "float comparison": "(bool y) <float a = {1}, float b = {2}> { y = Less(a, b) }",
    "a sum of floats": "(float y) <float[2] a = {1, 2}> { y = ReduceSum <keepdims = 0> (a) }",
    "a matrix product": (
        "(float[1,1] y) <float[1,2] a = {1,2}, float[2,1] b = {1,2}> { y = MatMul(a, b) }"
    ),
    "a transcendental": "(float y) <float a = {1}> { y = Exp(a) }",
    "random numbers": "(float[2] y) { y = RandomNormal <shape = [2], seed = 1.0> () }",
    "random numbers like": "(float[2] y) <float[2] a = {1,2}> { y = RandomNormalLike(a) }",
    "a quantized weight": (
        "(float[2] y) <int8[2] a = {1,2}, float s = {0.5}> { y = DequantizeLinear(a, s) }"
    ),
    "a sum beyond float64": (
        "(int64 y) <int64[2] a = {9007199254740992, 1}> { y = ReduceSum <keepdims = 0> (a) }"
    ),
    "a sum beyond its type": (
        "(int32 y) <int32[2] a = {2147483647, 1}> { y = ReduceSum <keepdims = 0> (a) }"
    ),
    "a sum that is in its type again": (
        "(int32 y) <int32[3] a = {2147483647, 1, -1}> { y = ReduceSum <keepdims = 0> (a) }"
    ),
    "a product beyond float64": (
        "(int64 y) <int64[2] a = {4611686018427387905, 2}> { y = ReduceProd <keepdims = 0> (a) }"
    ),
    "a product of one, beyond float64": (
        "(int64[1] y) <int64[1] a = {9223372036854775806}> { y = ReduceProd (a) }"
    ),
    "a remainder that float64 does not hold": (
        "(int64 y) <int64 a = {9223372036854775806}, int64 b = {-4}> { y = Mod <fmod = 1> (a, b) }"
    ),
    "a cast that the next one finds out of range": (
        "(int8[2] y) <uint32[2] a = {1, 4294967295}>"
        " { d = Cast <to = 11> (a) y = Cast <to = 3> (d) }"
    ),
    "a sum of nothing": "(int64 y) <int64[0] a = {}> { y = ReduceSum <keepdims = 0> (a) }",
    "non-zero of a scalar": "(int64[1,1] y) <int32 a = {1}> { y = NonZero(a) }",
    "text": '(string[2] y) <string[1,2] a = {"b", "c"}> { y = Squeeze(a) }',
    "4-bit numbers": "(int4[2] y) <int4[1,2] a = {33}> { y = Squeeze(a) }",
}


@pytest.mark.parametrize("graph", STAYS.values(), ids=STAYS.keys())
def test_stays_where_machines_or_implementations_differ(graph: str) -> None:
    model = onnx_text.model(f"g () => {graph}", infer=False)
    before = [node.op_type for node in model.graph]
    result = optimizing.optimized(model, "fold-constants")
    assert [node.op_type for node in result.model.graph] == before
    assert "fold-constants" not in optimizing.changes(result)


OLD = {
    "squeeze": (11, "(int32[2] y) <int32[1,2] o = {1,2}> { y = Squeeze <axes = [0]> (o) }"),
    "unsqueeze": (11, "(int32[1,2] y) <int32[2] o = {1,2}> { y = Unsqueeze <axes = [0]> (o) }"),
    "slice": (9, "(int32[1] y) <int32[2] o = {1,2}> { y = Slice <starts = [1], ends = [9]> (o) }"),
    "split": (
        11,
        "(int32[1] y, int32[2] z) <int32[3] o = {1,2,3}> { y, z = Split <split = [1,2]> (o) }",
    ),
    "reduce": (11, "(int32[1] y) <int32[3] o = {1,2,3}> { y = ReduceSum <axes = [0]> (o) }"),
    "pad": (10, "(float[3] y) <float[2] f = {1,2}> { y = Pad <pads = [0,1]> (f) }"),
}


@pytest.mark.parametrize(("opset", "graph"), OLD.values(), ids=OLD.keys())
def test_attributes_of_older_opsets(opset: int, graph: str) -> None:
    model = onnx_text.model(f"g () => {graph}", opsets=f'"" : {opset}')
    result = optimizing.check(model, {}, "fold-constants")
    assert set(optimizing.ops(result)) == {"Identity"}


def test_an_opset_in_which_an_op_was_another_op_is_left_alone() -> None:
    model = onnx_text.model(
        "g () => (int32[2] y) <int32[2] a = {1,2}, int32[2] b = {3,4}>"
        " { y = Add <broadcast = 0> (a, b) }",
        opsets='"" : 6',
    )
    result = optimizing.optimized(model, "fold-constants")
    assert optimizing.ops(result) == {"Add": 1}


NUMBERS = [
    np.dtype(kind + size)
    for kind, sizes in {"?": [""], "i": "1248", "u": "1248", "f": "248"}.items()
    for size in sizes
]


@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_casts_between_all_types(source: np.dtype[np.generic]) -> None:
    """One model with a cast to each type; what is out of range or NaN stays a node."""
    values = numbers(source)
    nodes, outputs = [], []
    for target in NUMBERS:
        fitting = values if target.kind in "fb" else values[in_range(values, target)]
        code = helper.np_dtype_to_tensor_dtype(target)
        constant = numpy_helper.from_array(fitting)
        nodes += [
            helper.make_node("Constant", [], [f"c_{target}"], value=constant),
            helper.make_node("Cast", [f"c_{target}"], [f"y_{target}"], to=code),
        ]
        outputs.append(helper.make_tensor_value_info(f"y_{target}", code, fitting.shape))
    graph = helper.make_graph(nodes, "casts", [], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    source_model = ir.serde.deserialize_model(model)
    result = optimizing.check(source_model, {}, "lift-constants", "fold-constants")
    assert set(optimizing.ops(result)) == {"Identity"}


def numbers(dtype: np.dtype[np.generic]) -> optimizing.Array:
    generator = np.random.default_rng(0)
    if dtype.kind == "b":
        return np.array([True, False, True])
    if dtype.kind == "f":
        edges = [0.0, -0.0, 0.5, -0.99, 1e-45, 6e-8, 65504.0, 65520.0, 1e5, np.inf, -np.inf]
        scale = np.exp(generator.normal(size=500) * 6)
        drawn = (generator.normal(size=500) * scale).astype(np.float32)
        with np.errstate(over="ignore"):
            return np.concatenate([drawn, np.array(edges, np.float32)]).astype(dtype)
    limits = np.iinfo(dtype)  # type: ignore[type-var]
    drawn = generator.integers(limits.min, limits.max, 500, dtype=dtype, endpoint=True)
    small = generator.integers(0, 100, 100).astype(dtype)
    if dtype.itemsize > 2:  # integers that float16 takes without rounding twice
        drawn = drawn // 2 ** (dtype.itemsize * 8 - 12)
    return np.concatenate([drawn, small, np.array([0, 1, 2047, 2049], np.int64).astype(dtype)])


def in_range(values: optimizing.Array, target: np.dtype[np.generic]) -> optimizing.Array:
    if values.dtype.kind != "f":
        return np.ones(values.shape, bool)
    limits = np.iinfo(target)  # type: ignore[type-var]
    wide = np.trunc(values.astype(np.float64))
    inside: optimizing.Array = (wide >= limits.min) & (wide <= np.nextafter(limits.max, 0.0))
    return inside


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Sqrt"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_arithmetic_has_the_bits_of_onnxruntime(op_type: str, dtype: type) -> None:
    generator = np.random.default_rng(1)
    scale = np.exp(generator.normal(size=(2, 4000)) * 25)
    left, right = np.minimum(np.abs(generator.normal(size=(2, 4000)) * scale), 1e38).astype(dtype)
    inputs = ["a"] if op_type == "Sqrt" else ["a", "b"]
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node(op_type, inputs, ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", code, [4000])],
        [numpy_helper.from_array(left, "a"), numpy_helper.from_array(right, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    result = optimizing.check(ir.serde.deserialize_model(model), {}, "fold-float-arithmetic")
    assert optimizing.changes(result) == {"fold-float-arithmetic": {op_type: 1}}


@pytest.mark.parametrize(
    "graph",
    [
        "(float16 y) <float16 a = {1}, float16 b = {2}> { y = Add(a, b) }",
        "(float y) <float a = {0}, float b = {0}> { y = Div(a, b) }",
        "(float y) <float a = {-1}> { y = Sqrt(a) }",
        "(float[1,1] y) <float[1,2] a = {1,2}, float[2,1] b = {1,2}> { y = MatMul(a, b) }",
        "(float y) <float[2] a = {1, 2}> { y = ReduceSum <keepdims = 0> (a) }",
        "(float y) <float a = {1}> { y = Exp(a) }",
    ],
)
def test_what_no_level_folds(graph: str) -> None:
    model = onnx_text.model(f"g () => {graph}")
    result = optimizing.optimized(model, "fold-constants", "fold-float-arithmetic")
    assert optimizing.changes(result) == {}


def test_onnxruntime_leaves_out_roundings_between_float16_nodes() -> None:
    """Why arithmetic of float16 is not folded: the run is not what the standard says."""
    value = helper.make_tensor_value_info
    names = "abc"
    graph = helper.make_graph(
        [helper.make_node("Mul", ["a", "b"], ["m"]), helper.make_node("Add", ["m", "c"], ["y"])],
        "g",
        [value(name, TensorProto.FLOAT16, [1000]) for name in names],
        [value("y", TensorProto.FLOAT16, [1000])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    generator = np.random.default_rng(0)
    feeds = {name: generator.normal(size=1000).astype(np.float16) for name in names}
    (run,) = optimizing.run(model.SerializeToString(), feeds)
    a, b, c = (feeds[name] for name in names)
    assert (np.asarray(run) != a * b + c).sum() > 100, ort.__version__


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth_undoes_depth_to_space(mode: str, tmp_path: Path) -> None:
    """By the mode that opset 28 brought, which onnxruntime 1.31.1 does not read."""
    model = onnx_text.model(
        "g () => (float[1,2,2,2] y) <float[1,2,2,2] o = {1,2,3,4,5,6,7,8}> {"
        f' d = SpaceToDepth <blocksize = 2, mode = "{mode}"> (o)'
        f' y = DepthToSpace <blocksize = 2, mode = "{mode}"> (d) }}',
        opsets='"" : 28',
    )
    FoldConstantsPass(Scratch(tmp_path))(model)
    (value,) = model.graph.initializers.values()
    assert value.const_value is not None
    np.testing.assert_array_equal(value.const_value.numpy().reshape(-1), np.arange(1, 9))


def test_an_opset_that_is_not_known_yet_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g () => (int32[2] y) <int32[2] a = {1,2}> { n = Identity(a) y = Add(n, n) }"
    monkeypatch.setattr(edit, "NEWEST_OPSET", 20)
    assert optimizing.changes(optimizing.optimized(onnx_text.model(text), "basic")) == {}


def test_no_kernel_is_older_than_its_operator() -> None:
    """When onnx has a new opset: read what changed, then raise `edit.NEWEST_OPSET`."""
    assert onnx.defs.onnx_opset_version() <= edit.NEWEST_OPSET


def test_every_kernel_names_an_operator_of_onnx() -> None:
    tables = (
        movement.KERNELS,
        movement.SHAPE_KERNELS,
        arithmetic.KERNELS,
        arithmetic.FLOAT_KERNELS,
    )
    for op_type, (since, _) in itertools.chain.from_iterable(t.items() for t in tables):
        assert onnx.defs.has(op_type)
        schema = onnx.defs.get_schema(op_type, max_inclusive_version=since)
        assert schema.name == op_type


def test_what_a_scratch_has_no_room_for_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "MOST", -1)
    weight = np.random.default_rng(0).random((4096, 2048), np.float32)
    turned = Operation(
        node=ir.node("Transpose", [ir.Value(name="w")]),
        version=21,
        inputs=(weight,),
        scratch=Scratch(tmp_path),
    )
    with pytest.raises(Declined):
        turned.contiguous(weight.T)
    assert not list(tmp_path.iterdir())
