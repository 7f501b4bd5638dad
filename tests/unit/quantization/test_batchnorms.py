"""BatchNormalization as QNN computes it right, with the numbers that it had."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from epctx.quantization import batchnorms
from tests.kit import onnx_text

BN = "BatchNormalization<epsilon=0.25>"
PARAMETERS = "sbmv"


def model(body: str, opset: int = 18, **weights: Any) -> onnx.ModelProto:
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
    made = model(body, **weights)
    before = outputs(made)
    batchnorms.fold(made, ())
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
    made = model(body, opset)
    batchnorms.fold(made, ())
    assert len(made.graph.node) == 1 and ops(made)[0].endswith("Normalization")


def test_a_parameter_that_whoever_runs_the_model_may_give_is_no_constant() -> None:
    made = model(f"g (float[2,4] x) => (float[2,4] y) {{ y = {BN}(x,s,b,m,v) }}")
    made.graph.input.append(onnx.helper.make_tensor_value_info("v", onnx.TensorProto.FLOAT, [4]))
    batchnorms.fold(made, ())
    assert ops(made) == ["BatchNormalization"]


def test_what_is_to_stay_stays() -> None:
    made = model(CONV % ("3,3", "Conv(x,w)"), w=normal(4, 2, 3, 3))
    made.graph.node[1].name = "bn"
    batchnorms.fold(made, ["bn"])
    assert ops(made) == ["Conv", "BatchNormalization"]
