"""Norms as QNN computes them right."""

import numpy as np
import onnxruntime as ort
import pytest

from epctx.quantization import norms
from tests.kit import onnx_text

NORM = (
    "g (float[2,3] x) => (float[2,3] y) { q = Mul(x, x) s = Sqrt(q) r = Reciprocal(s) y = Mul(%s) }"
)


@pytest.mark.parametrize("order", ["x, r", "r, x"])
def test_a_product_with_a_reciprocal_is_a_quotient_of_the_same_values(order: str) -> None:
    model = onnx_text.proto(NORM % order)
    x = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    assert norms.divide(model)
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
    assert not norms.divide(model)
    assert model.SerializeToString() == before
