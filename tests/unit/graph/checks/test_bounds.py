"""What a model may be at most; the message says by what, and which limit."""

from __future__ import annotations

import onnx
import pytest

from epctx.errors import ModelError
from epctx.graph.checks import bounds
from tests.kit import onnx_text

MODEL = "g (float[2] x) => (float[2] y) { a = Sum(x, x, x) y = Relu(a) }"


def model() -> onnx.ModelProto:
    return onnx_text.proto(MODEL)


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("MODEL_NODES", "has 2 nodes, more than 1"),
        ("NODE_INPUTS", "has 3 inputs, more than 1"),
    ],
)
def test_more_than_the_limit_is_refused(
    limit: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds.require(model(), where="a.onnx")
    monkeypatch.setenv(f"EPCTX_LIMIT_{limit}", "1")
    with pytest.raises(ModelError, match=says) as error:
        bounds.require(model(), where="a.onnx")
    assert f"raise EPCTX_LIMIT_{limit}, which is 1" in str(error.value.remedy)
