"""Each built-in rule: where it applies, and where it must not."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from epctx.graph.passes.rules import RULES
from epctx.graph.serde import canonical
from tests.kit import onnx_text, optimizing

FEEDS = {
    "x": np.array([[1.5, -0.0, 3.0], [-4.0, np.inf, 6.0]], np.float32),
    "i": np.array([[1, -2, 300], [-(2**31), 5, 6]], np.int32),
    "b": np.array([[True, False, True], [False, False, True]]),
    "n": np.array([3, -1, 300], np.int64),
}
TYPES = {"x": "float[2,3] x", "i": "int32[2,3] i", "b": "bool[2,3] b", "n": "int64[N] n"}


APPLIES = {
    "identity": ("x", "(float[2,3] y) { a = Identity(x) y = Relu(a) }", {"Relu": 1}),
    "dropout": ("x", "(float[2,3] y) { a = Dropout(x) y = Neg(a) }", {"Neg": 1}),
    "cast-to-same": ("x", "(float[2,3] y) { a = Cast<to = 1>(x) y = Neg(a) }", {"Neg": 1}),
    "cast-like": (
        "x", "(int32[2,3] y) <int32 t = {1}> { a = Tanh(x) y = CastLike(a, t) }",
        {"Tanh": 1, "Cast": 1},
    ),
    "cast-cast": (
        "i", "(int32[2,3] y) { a = Cast<to = 7>(i) b = Cast<to = 6>(a) y = Neg(b) }", {"Neg": 1}
    ),
    "cast-cast, on to another type": (
        "i", "(int8[2,3] y) { a = Cast<to = 7>(i) y = Cast<to = 3>(a) }", {"Cast": 1}
    ),
    "transpose-nothing": (
        "x", "(float[2,3] y) { a = Transpose<perm = [0,1]>(x) y = Neg(a) }", {"Neg": 1}
    ),
    "transpose-transpose": (
        "x", "(float[2,3] y) { a = Transpose(x) b = Transpose<perm = [1,0]>(a) y = Neg(b) }",
        {"Neg": 1},
    ),
    "transpose-transpose, composed": (
        "x",
        "(float[3,1,2] y) <int64[1] z = {0}> { a = Unsqueeze(x, z) b = Transpose<perm=[1,0,2]>(a)"
        " c = Transpose<perm = [2,1,0]>(b) d = Relu(c) y = Neg(d) }",
        {"Unsqueeze": 1, "Transpose": 1, "Relu": 1, "Neg": 1},
    ),
    "reshape-to-same": (
        "x", "(float[2,3] y) <int64[2] s = {2,-1}> { a = Reshape(x, s) y = Neg(a) }", {"Neg": 1}
    ),
    "reshape-to-same, expand": (
        "x", "(float[2,3] y) <int64[2] s = {2,1}> { a = Expand(x, s) y = Neg(a) }", {"Neg": 1}
    ),
    "reshape-to-same, tile": (
        "x", "(float[2,3] y) <int64[2] s = {1,1}> { a = Tile(x, s) y = Neg(a) }", {"Neg": 1}
    ),
    "reshape-back": (
        "x",
        "(float[2,3] y) <int64[1] z = {1}> { a = Unsqueeze(x, z) b = Squeeze(a, z) y = Neg(b) }",
        {"Neg": 1},
    ),
    "reshape-reshape": (
        "x",
        "(float[3,2] y) <int64[1] s = {6}, int64[2] t = {3,-1}>"
        " { a = Reshape(x, s) b = Reshape(a, t) y = Neg(b) }",
        {"Reshape": 1, "Neg": 1},
    ),
    "slice-all": (
        "x",
        "(float[2,3] y) <int64[1] z = {0}, int64[1] e = {99}> { a = Slice(x, z, e) y = Neg(a) }",
        {"Neg": 1},
    ),
    "pad-nothing": (
        "x", "(float[2,3] y) <int64[4] p = {0,0,0,0}> { a = Pad(x, p) y = Neg(a) }", {"Neg": 1}
    ),
    "only-input": ("x", "(float[2,3] y) { a = Concat<axis = 0>(x) y = Neg(a) }", {"Neg": 1}),
    "split-nothing": (
        "x", "(float[2,3] y) { a = Split<num_outputs = 1>(x) y = Neg(a) }", {"Neg": 1}
    ),
    "one-block": (
        "x",
        "(float[1,1,2,3] y) <int64[2] z = {0,1}>"
        " { a = Unsqueeze(x, z) b = SpaceToDepth<blocksize = 1>(a) y = Neg(b) }",
        {"Unsqueeze": 1, "Neg": 1},
    ),
    "not-not": ("b", "(bool[2,3] y) { a = Not(b) c = Not(a) y = Xor(c, b) }", {"Xor": 1}),
    "neg-neg": ("x", "(float[2,3] y) { a = Neg(x) b = Neg(a) y = Abs(b) }", {"Abs": 1}),
    "again": ("x", "(float[2,3] y) { a = Relu(x) b = Relu(a) y = Neg(b) }", {"Relu": 1, "Neg": 1}),
    "neutral": ("x", "(float[2,3] y) <float o = {1}> { a = Mul(x, o) y = Neg(a) }", {"Neg": 1}),
    "neutral, first": (
        "x", "(float[2,3] y) <float[1,3] o = {1,1,1}> { a = Mul(o, x) y = Neg(a) }", {"Neg": 1}
    ),
    "neutral, of integers": (
        "i",
        "(int32[2,3] y) <int32 o = {0}, int32 e = {1}>"
        " { a = Add(i, o) b = Sub(a, o) c = Div(b, e) y = Neg(c) }",
        {"Neg": 1},
    ),
    "neutral, negative zero": (
        "x", "(float[2,3] y) <float o = {-0.0}> { a = Add(x, o) y = Neg(a) }", {"Neg": 1}
    ),
    "neutral, a difference": (
        "x", "(float[2,3] y) <float o = {0.0}> { a = Sub(x, o) y = Neg(a) }", {"Neg": 1}
    ),
    "where": (
        "i",
        "(int32[2,3] y) <bool[3] c = {1,1,1}, int32 z = {9}> { a = Where(c, i, z) y = Neg(a) }",
        {"Neg": 1},
    ),
    "where, never": (
        "i",
        "(int32[2,3] y) <bool c = {0}, int32 z = {9}> { a = Where(c, z, i) y = Neg(a) }",
        {"Neg": 1},
    ),
    "gather-flat": (
        "b",
        "(bool[2,2] y) <int64[2,2,2] k = {0,0,1,2,-1,1,-2,-3}> { a = GatherND(b, k) y = Not(a) }",
        {"Reshape": 1, "Gather": 1, "Not": 1},
    ),
    "gather-flat, of rows": (
        "x", "(float[1,3] y) <int64[1,1] k = {-1}> { a = GatherND(x, k) y = Neg(a) }",
        {"Gather": 1, "Neg": 1},
    ),
    "norm-weights-second": (
        "x",
        "(float[2,3] y) <float[3] w = {1,2,3}>"
        " { q = Sqrt(x) r = Reciprocal(q) s = Mul(x, r) y = Mul(w, s) }",
        {"Sqrt": 1, "Reciprocal": 1, "Mul": 2},
    ),
    "known-dimension": (
        "xn",
        "(int64 y, float[2,3] w, int64[N] m) <int64 k = {-1}> { s = Shape(x) d = Gather(s, k)"
        " y = Neg(d) w = Neg(x) m = Neg(n) }",
        {"Neg": 3},
    ),
}  # fmt: skip


def graph(inputs: str, rest: str) -> str:
    return f"g ({', '.join(TYPES[name] for name in inputs)}) => {rest}"


@pytest.mark.parametrize(("inputs", "rest", "left"), APPLIES.values(), ids=APPLIES.keys())
def test_applies(
    inputs: str, rest: str, left: dict[str, int], request: pytest.FixtureRequest
) -> None:
    model = onnx_text.model(graph(inputs, rest))
    feeds = {name: FEEDS[name] for name in inputs}
    result = optimizing.check(model, feeds, "simplify", "remove-dead-code")
    assert optimizing.ops(result) == left
    rule = request.node.callspec.id.partition(",")[0]
    assert optimizing.changes(result)["simplify"][rule] >= 1


def test_every_rule_is_tested() -> None:
    assert {rule.name for rule in RULES} == {name.partition(",")[0] for name in APPLIES}


LEFT_ALONE = {
    "dropout in training": (
        "x", "(float[2,3] y) <float r = {0.0}, bool t = {1}> { y = Dropout(x, r, t) }"
    ),
    "dropout whose mask is used": ("x", "(float[2,3] y, bool[2,3] m) { y, m = Dropout(x) }"),
    "a cast that loses values": (
        "i", "(int32[2,3] y) { a = Cast<to = 3>(i) y = Cast<to = 6>(a) }"
    ),
    "a cast through float": ("i", "(int32[2,3] y) { a = Cast<to = 1>(i) y = Cast<to = 6>(a) }"),
    "a cast through 4 bits": (
        "i", "(int32[2,3] y) { a = Cast<to = 22>(i) y = Cast<to = 6>(a) }"
    ),
    "a cast through bool": ("i", "(int32[2,3] y) { a = Cast<to = 9>(i) y = Cast<to = 6>(a) }"),
    "adding 0.0 to a float": ("x", "(float[2,3] y) <float o = {0.0}> { y = Add(x, o) }"),
    "taking -0.0 from a float": ("x", "(float[2,3] y) <float o = {-0.0}> { y = Sub(x, o) }"),
    "a product that broadcasts": (
        "x", "(float[4,2,3] y) <float[4,1,1] o = {1,1,1,1}> { y = Mul(x, o) }"
    ),
    "one minus": ("i", "(int32[2,3] y) <int32 o = {0}> { y = Sub(o, i) }"),
    "a condition that varies": (
        "i", "(int32[2,3] y) <bool[3] c = {1,0,1}, int32 z = {9}> { y = Where(c, i, z) }"
    ),
    "a choice of floats": (
        "x", "(float[2,3] y) <bool c = {1}, float z = {9}> { y = Where(c, x, z) }"
    ),
    "an expansion that expands": (
        "x", "(float[4,2,3] y) <int64[3] s = {4,1,1}> { y = Expand(x, s) }"
    ),
    "a reshape of unknown size": ("n", "(int64[M] y) <int64[1] s = {-1}> { y = Reshape(n, s) }"),
    "a reshape that copies": (
        "x",
        "(float[2,3] y) <int64[3] s = {2,1,3}, int64[2] t = {0,-1}>"
        " { a = Reshape(x, s) b = Relu(a) c = Reshape(b, t) y = Neg(c) }",
    ),
    "a slice backwards": (
        "x",
        "(float[2,3] y) <int64[1] b = {-1}, int64[1] e = {-9}, int64[1] a = {1}, int64[1] s = {-1}>"
        " { y = Slice(x, b, e, a, s) }",
    ),
    "a pad": ("x", "(float[2,4] y) <int64[4] p = {0,0,0,1}> { y = Pad(x, p) }"),
    "a split": ("x", "(float[1,3] y, float[1,3] z) { y, z = Split<num_outputs = 2>(x) }"),
    "a gather whose indices are fed": (
        "xn", "(float[N,3] y) <int64[1] o = {-1}> { k = Unsqueeze(n, o) y = GatherND(x, k) }"
    ),
    "a gather in batches": (
        "x", "(float[2] y) <int64[2,1] k = {0,2}> { y = GatherND<batch_dims = 1>(x, k) }"
    ),
    "weights that are second": (
        "x",
        "(float[2,3] y) <float[3] w = {1,2,3}>"
        " { q = Sqrt(x) r = Reciprocal(q) s = Mul(x, r) y = Mul(s, w) }",
    ),
    "weights that are computed": (
        "x",
        "(float[2,3] y) { w = Neg(x) q = Sqrt(x) r = Reciprocal(q) s = Mul(x, r) y = Mul(w, s) }",
    ),
    "an unknown dimension": ("n", "(int64 y) <int64 k = {0}> { s = Shape(n) y = Gather(s, k) }"),
    "an input that is an output": ("x", "(float[2,3] y) { y = Identity(x) }"),
}  # fmt: skip


@pytest.mark.parametrize(("inputs", "rest"), LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_leaves_alone(inputs: str, rest: str) -> None:
    model = onnx_text.model(graph(inputs, rest))
    before = [node.op_type for node in model.graph]
    result = optimizing.optimized(model, "simplify")
    assert [node.op_type for node in result.model.graph] == before
    assert optimizing.changes(result) == {}


@pytest.mark.parametrize(
    ("opset", "attributes", "gone"),
    [(6, "is_test = 1", True), (6, "is_test = 0", False), (7, "ratio = 0.5", True)],
)
def test_dropout_of_old_opsets(opset: int, attributes: str, gone: bool) -> None:
    model = onnx_text.model(
        f"g (float[2,3] x) => (float[2,3] y) {{ a = Dropout<{attributes}>(x) y = Neg(a) }}",
        opsets=f'"" : {opset}',
    )
    result = optimizing.optimized(model, "simplify")
    assert ("Dropout" not in optimizing.ops(result)) is gone


@pytest.mark.parametrize(
    "body",
    [
        "t = Transpose(x) i = Identity(t) g = Gemm(t, w) y = Transpose(g)",
        "t = Transpose(x) i = Transpose(x) g = Gemm(t, w) y = Transpose(g)",
        "i = Transpose(x) t = Transpose(x) g = Gemm(t, w) y = Transpose(g)",
        "t = Transpose(x) n = Neg(t) i = Neg(n) g = Gemm(t, w) y = Transpose(g)",
    ],
)
@pytest.mark.parametrize("level", ["none", "basic", "extended"])
def test_no_level_makes_what_onnxruntime_cannot_load(body: str, level: str) -> None:
    """A value that is an output and is used by nodes, too, trips its fusion of Gemm, 1.31.1."""
    weight = "<float[3,3] w = {1,2,3,4,5,6,7,8,9}>"
    model = onnx_text.model(
        f"g (float[3,3] x) => (float[3,3] i, float[3,3] y) {weight} {{ {body} }}"
    )
    made = canonical.serialize(optimizing.optimized(model, level).model)
    session = ort.InferenceSession(made)
    assert len(session.run(None, {"x": np.eye(3, dtype=np.float32)})) == 2


def test_an_identity_of_what_nobody_else_uses_goes() -> None:
    text = "g (float[3,3] x) => (float[3,3] y) { t = Transpose(x) y = Identity(t) }"
    assert optimizing.ops(optimizing.optimized(onnx_text.model(text), "basic")) == {"Transpose": 1}
