"""Arguments that onnx's inference and ONNX Runtime's kernels read differently."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from epctx.graph.prepare import arguments
from epctx.graph.prepare.inference import infer
from epctx.graph.serde import protos
from tests.kit import onnx_text, optimizing

X = {"x": np.array([[1, 2, 3]], np.float32)}
FIVE = "float[5] c = {1,2,3,4,5}, int64[1] a = {0}, int64[1] b = {-1}"


def slice_(end: int, step: int, kind: str = "int64") -> str:
    return (
        f"(float[1,3] x) => (int64[N] y) <{kind}[1] a = {{1}}, {kind}[1] b = {{-1}},"
        f" {kind}[1] e = {{{end}}}, {kind}[1] s = {{{step}}}> {{ z = Slice(x, b, e, a, s)"
        " y = Shape(z) }"
    )


READ_ALIKE = {
    "slice to the largest integer": slice_(2**63 - 1, -1),
    "slice to the largest of 32 bits": slice_(2**31 - 1, -1),
    "slice by 32 bits to the largest": slice_(2**31 - 1, -1, "int32"),
    "slice nearly to the largest": slice_(2**63 - 2, -1),
    "slice by the lowest step": slice_(2**63 - 1, -(2**63)),
    "slice by the largest step": slice_(2**63 - 1, 2**63 - 1),
    "slice of a constant": (
        f"(float[1,3] x) => (float[N] y) <{FIVE}, int64[1] e = {{{2**63 - 1}}}>"
        " { z = Slice(c, b, e, a, b) y = Concat <axis = 0> (z, z) }"
    ),
    "slice to an end that nodes compute": (
        f"(float[1,3] x) => (int64[N] y) <{FIVE}, int64[1] e = {{{-(2**63) + 1}}}>"
        " { n = Neg(e) z = Slice(c, b, n, a, b) y = Shape(z) }"
    ),
    "slice by a Constant": (
        f"(float[1,3] x) => (int64[N] y) <{FIVE}> {{"
        f" e = Constant <value_ints = [{2**63 - 1}]> () z = Slice(c, b, e, a, b) y = Shape(z) }}"
    ),
    "squeeze of no axes": (
        "(float[1,3] x) => (int64[N] y) <int64[0] a = {}> { z = Squeeze(x, a) y = Shape(z) }"
    ),
    "reduction of no axes that counts for one": (
        "(float[1,3] x) => (int64[N] y) { z = ReduceSum <noop_with_empty_axes = 2> (x)"
        " y = Shape(z) }"
    ),
    "reduction of no axes of a constant": (
        "(float[1,3] x) => (int64[N] y) <int64[2] c = {3,4}, int64[0] a = {}>"
        " { y = ReduceSum <noop_with_empty_axes = -1> (c, a) }"
    ),
    "reshape that may have zeros": (
        "(float[1,3] x) => (int64[N] y) <int64[1] s = {0}, float[3] c = {1,2,3}>"
        " { n = Identity(c) z = Reshape <allowzero = 2> (n, s) y = Shape(z) }"
    ),
    "non-zero of a scalar": (
        "(float[1,3] x) => (int64[N] y) <float c = {3}> { z = NonZero(c) y = Shape(z) }"
    ),
    "an operand of size 1": (
        "(float[1,3] x) => (int64[N] y) <float[2,3,1] c = {1,2,3,4,5,6}, int64[1] a = {0}>"
        ' { b = Unsqueeze(x, a) z = Einsum <equation = "bik,bkj->bij"> (b, c) y = Shape(z) }'
    ),
    "a last window in the padding": (
        "(float[1,3] x) => (int64[N] y) <int64[2] a = {0,1}> { b = Unsqueeze(x, a)"
        " z = MaxPool <kernel_shape = [1,2], strides = [1,2], pads = [0,1,0,1], ceil_mode = 1> (b)"
        " y = Shape(z) }"
    ),
    "the largest of nothing": (
        "(float[1,3] x) => (int64[N] y) <int64[1] a = {0}, float[0] c = {}>"
        " { n = Identity(c) z = ReduceMax <keepdims = 0> (n, a) y = Shape(z) }"
    ),
    "a slope wider than what it is for": (
        "(float[1,3] x) => (int64[N] y) <float[2,1] s = {1,2}> { z = PRelu(x, s) y = Shape(z) }"
    ),
}


@pytest.mark.parametrize("body", READ_ALIKE.values(), ids=READ_ALIKE.keys())
@pytest.mark.parametrize("level", ["none", "basic"])
def test_what_is_optimized_is_what_kernels_compute(body: str, level: str) -> None:
    optimizing.check(onnx_text.model(f"g {body}", infer=False), X, level=level)


@pytest.mark.parametrize("op_type", ["Squeeze", "Unsqueeze"])
def test_axes_from_the_back_before_opset_11(op_type: str) -> None:
    body = (
        f"g (float[1,3] x) => (int64[N] y) <float[1,1,3,1] c = {{1,2,3}}>"
        f" {{ n = Identity(c) z = {op_type} <axes = [-1]> (n) y = Shape(z) }}"
    )
    optimizing.check(onnx_text.model(body, opsets='"" : 10', infer=False), X)


def test_nodes_of_bodies_are_rewritten_by_constants_around_them() -> None:
    model = onnx_text.proto(
        "g (float[1,3] x, bool c) => (float[N] y) <int64[0] a = {}> { y = If(c) <"
        "then_branch = t () => (float[N] p) { p = Squeeze(x, a) },"
        "else_branch = e () => (float[N] q) <int64[1] a = {0}> { q = Squeeze(x, a) }> }"
    )
    arguments.write_alike(model)
    first, second = (body.node[0] for body in protos.subgraphs(model.graph.node[0]))
    assert list(first.input) == ["x"] and list(second.input) == ["x", "a"]


@pytest.mark.parametrize(
    ("node", "opset", "shapes", "disputed"),
    [
        ("y = NonZero(x)", 21, {"x": ()}, arguments.Dispute()),
        ("y = NonZero(x)", 21, {"x": (1,)}, None),
        ("y = NonZero(x)", 21, {}, None),
        ("y = PRelu(x, s)", 21, {"x": (2, 3), "s": (3,)}, None),
        ("y = PRelu(x, s)", 21, {"x": (2, 3), "s": (2,)}, None),  # it does not fit
        ("y = PRelu(x, s)", 21, {"x": (1, 3), "s": (2, 1, 3)}, arguments.Dispute((2, 1, 3))),
        ("y = PRelu(x, s)", 21, {"x": (None, 3), "s": (2, 1, 1)}, arguments.Dispute((2, None, 3))),
        ("y = Squeeze <axes = [-1]> (x)", 10, {}, arguments.Dispute()),
        ("y = Squeeze <axes = [-1]> (x)", 11, {}, None),
        ("y = Squeeze <axes = [1]> (x)", 10, {}, None),
    ],
)
def test_what_is_disputed(
    node: str,
    opset: int,
    shapes: Mapping[str, arguments.Shape],
    disputed: arguments.Dispute | None,
) -> None:
    model = onnx_text.proto(f"g (float[N] x, float[N] s) => (float[N] y) {{ {node} }}")
    assert arguments.disputed(model.graph.node[0], opset, shapes) == disputed


@pytest.mark.parametrize(
    ("equation", "left", "right", "shape"),
    [
        ("bik,bkj->bij", (1, 3, 1), (2, 1, 3), (2, 3, 3)),
        ("bik,bkj->bij", (1, 3, 1), (0, 1, 3), (0, 3, 3)),
        ("bik,bkj->bij", (1, 3, 4), (None, 4, 3), (None, 3, 3)),
        ("b i k, b k j", (1, 3, 4), (2, 4, 5), (3, 5)),
        ("...ik,...kj->...ij", (2, 1, 3, 4), (5, 4, 6), (2, 5, 3, 6)),
        ("...ik,...kj", (1, 3, 4), (5, 4, 6), (5, 3, 6)),
        ("bik,bkj->bij", (2, 3, 4), (2, 4, 3), None),
        ("bik,bkj->bij", (2, 3, 4), (3, 4, 3), None),  # they do not fit
    ],
)
def test_einsum_broadcasts(
    equation: str, left: arguments.Shape, right: arguments.Shape, shape: arguments.Shape | None
) -> None:
    node = f'y = Einsum <equation = "{equation}"> (x, s)'
    model = onnx_text.proto(f"g (float[N] x, float[N] s) => (float[N] y) {{ {node} }}")
    found = arguments.disputed(model.graph.node[0], 21, {"x": left, "s": right})
    assert (None if found is None else found.shape) == shape


def _named(model: onnx.ModelProto) -> Mapping[str, list[int]]:
    return {t.name: numpy_helper.to_array(t).tolist() for t in model.graph.initializer}


def test_constants_that_others_read_stay() -> None:
    model = onnx_text.proto(
        f"g (float[5] x) => (float[N] y, int64[1] f) <int64[1] e = {{{2**63 - 1}}}, float[1] "
        '"y/ends" = {7}, int64[1] b = {-1}, int64[1] a = {0}>'
        " { y = Slice(x, b, e, a, b) f = Identity(e) }"
    )
    arguments.write_alike(model)
    node, other = model.graph.node
    assert list(node.input) == ["x", "b", "y/ends_", "a", "b"] and list(other.input) == ["e"]
    assert _named(model)["y/ends_"] == [-(2**63)] and _named(model)["e"] == [2**63 - 1]


@pytest.mark.parametrize(
    "body",
    [
        "(float[5] x, int64[1] e) => (float[N] y) <int64[1] b = {-1}, int64[1] a = {0}>"
        " { y = Slice(x, b, e, a, b) }",
        "(float[1,5] x, int64[K] a) => (float[N] y) { y = Squeeze(x, a) }",
        "(float[5] x) => (float[N] y) <int64[1] b = {-1}, int64[1] e = {-9}, int64[1] a = {0}>"
        " { y = Slice(x, b, e, a, b) }",
        "(float[5] x) => (float[1] y) { y = ReduceSum <noop_with_empty_axes = 1> (x) }",
    ],
)
def test_what_is_read_alike_or_no_constant_stays(body: str) -> None:
    model = onnx_text.proto(f"g {body}")
    before = model.SerializeToString()
    arguments.write_alike(model)
    assert model.SerializeToString() == before


def test_an_overridable_initializer_is_no_constant() -> None:
    model = onnx_text.proto("g (float[1,5] x, int64[0] a) => (float[N] y) { y = Squeeze(x, a) }")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(0, np.int64), "a"))
    arguments.write_alike(model)
    assert list(model.graph.node[0].input) == ["x", "a"]


def test_no_shape_is_known_of_what_is_disputed_nor_of_what_follows() -> None:
    model = infer(
        onnx_text.proto(
            "g (float x) => (int64[A,B] y) <int64[0,N] z> { z = NonZero(x) y = Neg(z) }"
        )
    )
    values = {value.name: value.type.tensor_type for value in protos.values(model)}
    assert values["z"].elem_type == values["y"].elem_type == onnx.TensorProto.INT64
    assert not values["z"].HasField("shape") and not values["y"].HasField("shape")
    assert {node.domain for node in model.graph.node} == {""}
    assert [each.domain for each in model.opset_import] == [""]


def test_what_contradicts_a_disputed_shape_is_no_contradiction() -> None:
    """Kernels make [1, N] of a scalar; onnx infers [0, N], which Squeeze cannot take."""
    said: list[str] = []
    body = "g (int64 x) => (int64[A] y) <int64[1] a = {0}> { m = NonZero(x) y = Squeeze(m, a) }"
    infer(onnx_text.proto(body), said.append)
    assert said == []


def test_an_eyelike_of_a_value_without_a_type_does_not_end_the_process() -> None:
    """onnx 1.23.2 follows a null pointer there: Compress of opset 9 has no inference."""
    model = infer(
        onnx_text.proto(
            "g (float[3,3] x, bool[3] c) => (double[A,B] y) {"
            " z = Compress <axis = 0> (x, c) e = EyeLike <dtype = 11> (z) y = Neg(e) }",
            opsets='"" : 10',
        )
    )
    types = {v.name: v.type.tensor_type.elem_type for v in model.graph.value_info}
    assert types["e"] == onnx.TensorProto.DOUBLE
    ir.serde.deserialize_model(model)


@pytest.mark.parametrize("step", [2**63 - 1, 2**31 - 1, -(2**63)])
def test_a_step_beyond_any_axis_does_not_end_the_process(step: int) -> None:
    """onnx 1.23.2 adds it to an index in 32 bits, and runs for ever or reads what is not its."""
    body = (
        "g (float[2,3] x) => (int64[N] y) <int64[1] b = {1}, int64[1] e = {"
        f"{2**31 - 1}}}, int64[1] a = {{0}}, int64[1] s = {{{step}}}>"
        " { t = Shape(x) y = Slice(t, b, e, a, s) }"
    )
    infer(onnx_text.proto(body))
