"""Random graphs are optimized without a difference; `make soak` tries two thousand of them."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from epctx.graph.prepare import arguments
from tests.fuzz.graphs import campaign, levels, shrinking
from tests.fuzz.graphs.models import RandomModel
from tests.kit import onnx_text

SAMPLE, SMALL = range(30), 30


def test_a_sample_is_optimized_without_a_difference() -> None:
    tally = campaign.check(SAMPLE, SMALL)
    assert not tally.faults
    assert tally.counts["models"] == len(SAMPLE) and tally.counts["not run"] <= 2
    assert tally.counts["nodes"] > 500


@pytest.mark.soak
def test_two_thousand_are_optimized_without_a_difference() -> None:
    tally = campaign.run(0, int(os.environ.get("EPCTX_FUZZ_GRAPHS", "2000")), os.cpu_count() or 1)
    print("\n" + "\n".join(tally.lines()))
    assert not tally.faults
    assert tally.counts["not run"] < 0.08 * tally.counts["models"]


def _value(array: np.ndarray) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(array)


def test_a_fault_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "write_alike", lambda model: None)
    proto = onnx_text.proto(
        "g (float[1,3] x) => (int64[N] y, float[A] z) <int64[0] a = {}> {"
        " n = Neg(x) s = Squeeze(n, a) t = Shape(s) y = Neg(t) z = Exp(s) }"
    )
    feeds = {"x": _value(np.ones((1, 3), np.float32))}
    found = levels.difference(proto, feeds, "basic")
    assert found == "basic: y is int64[2] [-1, -3], not int64[1] [-3]"
    assert levels.explanation(proto, feeds, "basic") is None
    random = RandomModel(seed=0, opset=21, proto=proto, feeds=feeds, counts=Counter())
    model, given = shrinking.shrunk(random, "basic")
    assert [node.op_type for node in model.graph.node] == ["Squeeze", "Shape", "Neg"]
    assert [info.name for info in model.graph.output] == ["y"]
    assert levels.difference(model, given, "basic") is not None


def test_casts_that_onnxruntime_leaves_out_are_explained_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proto = onnx_text.proto(
        "g (float16[64] x, float16[64] s) => (float16[64] y) {"
        " m = Mul(x, x) i = Identity(m) j = Identity(i) y = Add(j, s) }"
    )
    values = np.linspace(0.1, 9, 64).astype(np.float16)
    feeds = {"x": _value(values), "s": _value(values[::-1].copy())}
    assert levels.difference(proto, feeds, "none") is None
    assert levels.difference(proto, feeds, "basic") is not None
    assert levels.explanation(proto, feeds, "basic") == levels.LEFT_OUT
    wrong = onnx.ModelProto()
    wrong.CopyFrom(levels.optimized(proto, "basic"))
    wrong.graph.node[-1].op_type = "Sub"
    monkeypatch.setattr(levels, "optimized", lambda model, level: wrong)
    assert levels.explanation(proto, feeds, "basic") is None
