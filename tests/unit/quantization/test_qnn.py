"""Float models rewritten so that QNN computes them right."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.quantization import qnn
from tests.kit import onnx_text


def model(size: int = 4) -> onnx.ModelProto:
    """y = (x * w) * w + w, and a body that takes w too."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in "xy"]
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "w"], ["b"]),
        helper.make_node("Add", ["b", "w"], ["y"]),
    ]
    weight = numpy_helper.from_array(np.ones(size, np.float32), "w")
    taken = numpy_helper.from_array(np.ones(1, np.float32), "w/1")
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], [weight, taken])
    return helper.make_model(graph)


def test_each_node_has_a_constant_of_its_own() -> None:
    made = model()
    assert qnn.separate_constants(made)
    names = [node.input[1] for node in made.graph.node]
    assert names == ["w", "w/2", "w/3"], "another tensor is called w/1"
    values = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    assert all((values[name] == 1).all() and values[name].shape == (4,) for name in names)
    onnx.checker.check_model(made)


def test_what_is_alone_or_large_stays() -> None:
    made = model()
    assert qnn.separate_constants(made)
    assert not qnn.separate_constants(made), "nothing is shared any more"
    large = model(1 << 17)
    assert not qnn.separate_constants(large)


BN = "BatchNormalization<epsilon=0.25>"
PARAMETERS = "sbmv"


def parsed(body: str, opset: int = 18, **weights: Any) -> onnx.ModelProto:
    """`body` with its weights, and 4 channels of parameters as s, b, m and v."""
    made = onnx_text.proto(body, opsets=f'"" : {opset}', ir_version=8)
    rng = np.random.default_rng(3)
    given = {name: rng.uniform(0.1, 4, 4) for name in PARAMETERS} | weights
    taken = {value.name for value in made.graph.input}
    for name, array in given.items():
        if name not in taken:
            tensor = numpy_helper.from_array(np.asarray(array, np.float32), name)
            made.graph.initializer.append(tensor)
    inferred = onnx.shape_inference.infer_shapes(made)
    onnx.checker.check_model(inferred, full_check=True)
    return inferred


def ops(made: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in made.graph.node]


def outputs(made: onnx.ModelProto) -> list[Any]:
    session = onnx_text.session(made)
    rng = np.random.default_rng(5)
    feeds = {each.name: rng.uniform(0.5, 2, each.shape) for each in session.get_inputs()}
    return list(session.run(None, {name: each.astype("f4") for name, each in feeds.items()}))


def normal(*shape: int) -> Any:
    return np.random.default_rng(7).standard_normal(shape)


CONV = "g (float[1,2,5,5] x) => (float[1,4,%s] y) { c = %s y = " + BN + "(c,s,b,m,v) }"
GEMM = "g (float[3,2] x) => (float[3,4] y) { c = Gemm%s y = " + BN + "(c,s,b,m,v) }"
MATMUL = "g (float[3,2] x) => (float[3,4] y) { c = MatMul(x,w) %s }"
TWICE = "g (float[1,2,5] x) => (float[1,4,3] y) { c = Conv(x,w) d = %s(c,s,b,m,v) %s }"


@pytest.mark.parametrize(
    ("body", "weights", "wanted"),
    [
        (CONV % ("3,3", "Conv(x,w)"), {"w": normal(4, 2, 3, 3)}, ["Conv"]),
        (CONV % ("3,3", "Conv(x,w,z)"), {"w": normal(4, 2, 3, 3), "z": normal(4)}, ["Conv"]),
        (CONV % ("3,3", "Conv(x,w,s)"), {"w": normal(4, 2, 3, 3)}, ["Conv"]),
        (CONV % ("3,3", "Conv<group=2>(x,w)"), {"w": normal(4, 1, 3, 3)}, ["Conv"]),
        (CONV % ("7,7", "ConvTranspose(x,w)"), {"w": normal(2, 4, 3, 3)}, ["ConvTranspose"]),
        (
            CONV % ("7,7", "ConvTranspose<group=2>(x,w)"),
            {"w": normal(2, 2, 3, 3)},
            ["ConvTranspose", "Mul", "Add"],
        ),
        (GEMM % "(x,w)", {"w": normal(2, 4)}, ["Gemm"]),
        (GEMM % "<transB=1>(x,w,z)", {"w": normal(4, 2), "z": normal(4)}, ["Gemm"]),
        (
            GEMM % "<alpha=0.5,beta=2.0>(x,w,z)",
            {"w": normal(2, 4), "z": normal(3, 1)},
            ["Gemm"],
        ),
        (MATMUL % f"y = {BN}(c,s,b,m,v)", {"w": normal(2, 4)}, ["MatMul", "Mul", "Add"]),
        (
            MATMUL % f"d = Add(c,z) y = {BN}(d,s,b,m,v)",
            {"w": normal(2, 4), "z": normal(4)},
            ["MatMul", "Add", "Mul", "Add"],
        ),
        (TWICE % (BN, f"y = {BN}(d,s,b,m,v)"), {"w": normal(4, 2, 3)}, ["Conv"]),
        (TWICE % (BN, "y = Add(c,d)"), {"w": normal(4, 2, 3)}, ["Conv", "Mul", "Add", "Add"]),
        (
            TWICE % (BN, "e = Conv(x,w) y = Add(d,e)"),
            {"w": normal(4, 2, 3)},
            ["Conv", "Conv", "Add"],
        ),
        (
            "g (float[1,2,5] x) => (float[1,4,3] y, float[1,4,3] c) "
            f"{{ c = Conv(x,w) y = {BN}(c,s,b,m,v) }}",
            {"w": normal(4, 2, 3)},
            ["Conv", "Mul", "Add"],
        ),
        (
            f"g (float[1,2,5] x, float[4,2,3] w) => (float[1,4,3] y) "
            f"{{ c = Conv(x,w) y = {BN}(c,s,b,m,v) }}",
            {},
            ["Conv", "Mul", "Add"],
        ),
        (
            f"g (float[1,2,5] x, float[4] z) => (float[1,4,3] y) "
            f"{{ c = Conv(x,w,z) y = {BN}(c,s,b,m,v) }}",
            {"w": normal(4, 2, 3)},
            ["Conv", "Mul", "Add"],
        ),
        (f"g (float[2,4] x) => (float[2,4] y) {{ y = {BN}(x,s,b,m,v) }}", {}, ["Mul", "Add"]),
        (
            "g (float[1,4,5,5] x) => (float[1,2,5,5] y) "
            f"{{ n = {BN}(x,s,b,m,v) y = Conv<pads=[1,1,1,1]>(n,w) }}",
            {"w": normal(2, 4, 3, 3)},
            ["Mul", "Add", "Conv"],
        ),
    ],
)
def test_it_is_replaced_by_what_computes_the_same(
    body: str, weights: dict[str, Any], wanted: list[str]
) -> None:
    made = parsed(body, **weights)
    before = outputs(made)
    qnn.fold_batchnorms(made, ())
    assert ops(made) == wanted
    onnx.checker.check_model(made, full_check=True)
    for found, each in zip(outputs(made), before, strict=True):
        np.testing.assert_allclose(found, each, rtol=1e-4, atol=1e-5)
    uses = Counter(name for node in made.graph.node for name in node.input)
    assert {tensor.name for tensor in made.graph.initializer} <= uses.keys(), "nothing is left over"


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        (f"g (float[2,4] x, float[4] s) => (float[2,4] y) {{ y = {BN}(x,s,b,m,v) }}", 18),
        (
            "g (float[2,4] x) => (float[2,4] y) "
            "{ y, i, j = BatchNormalization<training_mode=1>(x,s,b,m,v) }",
            18,
        ),
        (
            "g (float[2,4] x) => (float[2,4] y) { y, i, j, k, l = BatchNormalization(x,s,b,m,v) }",
            9,
        ),
        ("g (float[2,4,3] x) => (float[2,4,3] y) { y = InstanceNormalization(x,s,b) }", 18),
    ],
)
def test_what_cannot_be_replaced_stays(body: str, opset: int) -> None:
    made = parsed(body, opset)
    qnn.fold_batchnorms(made, ())
    assert len(made.graph.node) == 1 and ops(made)[0].endswith("Normalization")


def test_a_parameter_that_whoever_runs_the_model_may_give_is_no_constant() -> None:
    made = parsed(f"g (float[2,4] x) => (float[2,4] y) {{ y = {BN}(x,s,b,m,v) }}")
    made.graph.input.append(onnx.helper.make_tensor_value_info("v", onnx.TensorProto.FLOAT, [4]))
    qnn.fold_batchnorms(made, ())
    assert ops(made) == ["BatchNormalization"]


def test_what_is_to_stay_stays() -> None:
    made = parsed(CONV % ("3,3", "Conv(x,w)"), w=normal(4, 2, 3, 3))
    made.graph.node[1].name = "bn"
    qnn.fold_batchnorms(made, ["bn"])
    assert ops(made) == ["Conv", "BatchNormalization"]


NORM = (
    "g (float[2,3] x) => (float[2,3] y) { q = Mul(x, x) s = Sqrt(q) r = Reciprocal(s) y = Mul(%s) }"
)


@pytest.mark.parametrize("order", ["x, r", "r, x"])
def test_a_product_with_a_reciprocal_is_a_quotient_of_the_same_values(order: str) -> None:
    model = onnx_text.proto(NORM % order)
    x = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    assert qnn.divide_by_roots(model)
    assert [node.op_type for node in model.graph.node] == ["Mul", "Sqrt", "Div"]
    found = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "g (float[3] x) => (float[3] y, float[3] r) { r = Reciprocal(x) y = Mul(x, r) }",
        "g (float[3] x) => (float[3] y) { r = Reciprocal(x) m = Mul(x, r) y = Add(m, r) }",
        "g (float[3] x) => (float[3] y) { r = Reciprocal(x) y = Mul(r, r) }",
        "g (float[3] x) => (float[3] y) { r = Reciprocal(x) y = Add(x, r) }",
        "g (float[3] x, bool c) => (float[3] y, float[3] z) { r = Reciprocal(x) y = Mul(x, r) "
        "z = If (c) <then_branch = t () => (float[3] a) { a = Neg(r) }, "
        "else_branch = e () => (float[3] b) { b = Abs(x) }> }",
    ],
)
def test_a_reciprocal_that_something_else_needs_stays(text: str) -> None:
    model = onnx_text.proto(text)
    before = model.SerializeToString()
    assert not qnn.divide_by_roots(model)
    assert model.SerializeToString() == before
