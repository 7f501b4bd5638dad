from __future__ import annotations

import pytest

from epctx.verification.numbers.probabilities import outputs
from tests.kit import onnx_text

BODIES = {
    "(float[2, 3] x) => (float[2, 3] y) { y = Sigmoid (x) }": True,
    "(float[2, 3] x) => (float[2, 3] y) { y = Softmax (x) }": True,
    "(float[2, 3] x) => (float[2, 3] y) { y = Tanh (x) }": False,
    "(float[2, 3] x) => (float y) { s = Sigmoid (x) t = Concat <axis = 0> (x, s) "
    "y = Transpose (t) }": True,
    "(float[2, 3] x) => (float[2, 3] y) { s = Sigmoid (x) y = Mul (s, x) }": False,
    "(float[2, 3] x) => (float[2, 3] y) { s = Sigmoid (x) p = Softmax (x) y = Mul (s, p) }": True,
    "(float[2, 3] x) => (float[2, 3] y) { s = Sigmoid (x) y = Log (s) }": False,
    "(bool c, float[2, 3] x) => (float[2, 3] y) { y = If (c) <then_branch = a () => "
    "(float[2, 3] p) { p = Sigmoid (x) }, else_branch = b () => (float[2, 3] q) "
    "{ q = Identity (x) }> }": True,
}


@pytest.mark.parametrize(("body", "probable"), BODIES.items())
def test_what_ends_in_probabilities(body: str, probable: bool) -> None:
    assert outputs(onnx_text.proto(f"g {body}")) == (frozenset({"y"}) if probable else frozenset())


def test_a_sigmoid_in_a_local_function_counts() -> None:
    model = onnx_text.proto(
        "g (float[2] x) => (float[2] y, float[2] z) { y = own.f (x) z = Tanh (x) } "
        '<domain: "own", opset_import: ["": 21]> f (a) => (b) { b = Sigmoid (a) }',
        opsets='"": 21, "own": 1',
    )
    assert outputs(model) == {"y"}
