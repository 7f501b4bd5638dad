"""Whatever the graph, optimized it computes the same bits, and no more can be optimized."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings

from tests.kit import optimizing, strategies

FEEDS: optimizing.Feeds = {
    "x": np.array([[1.5, -0.0, -3.25], [1e-40, 3e38, 0.1]], np.float32),
    "i": np.array([[1, -2, 3], [0, 2**40, -7]], np.int64),
}


@pytest.mark.parametrize("level", ["basic", "extended"])
@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(model=strategies.expressions())
def test_optimized_graphs_compute_the_same_bits(model: onnx.ModelProto, level: str) -> None:
    result = optimizing.check(ir.serde.deserialize_model(model), FEEDS, level=level)
    again = optimizing.optimized(result.model, level)
    assert optimizing.changes(again) == {}
    assert again.digest == result.digest
