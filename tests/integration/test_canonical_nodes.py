"""ONNX's own node tests, loaded and written canonically: ONNX Runtime sees the same model.

Of onnx 1.23.2's 1,884 tests onnxruntime 1.31.1 loads 1,515 and 1.32.0 1,765. Each has the same
inputs and outputs afterwards, and computes the same, bit for bit, where Python can give onnxruntime
its inputs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.backend.test.case.test_case import TestCase

from epctx.graph.serde import canonical
from epctx.manifest import ModelSource
from epctx.stages import load

pytestmark = pytest.mark.soak


def _session(data: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _border(
    session: ort.InferenceSession, *, shaped: bool = True
) -> list[tuple[str, str, list[object]]]:
    """Inputs and outputs; the latter without their shapes, if not `shaped`."""
    outputs = [
        (each.name, each.type, each.shape if shaped else []) for each in session.get_outputs()
    ]
    return [(each.name, each.type, each.shape) for each in session.get_inputs()] + outputs


def _is_disputed(case: TestCase) -> bool:
    """A reduction of nothing: of other shapes in ONNX Runtime's kernels than in onnx's inference,
    so that its output has none that is known, which onnx.checker does not take.
    """
    return case.name.startswith("test_reduce_") and "_empty_set" in case.name


def _array(value: object) -> object:
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _run(session: ort.InferenceSession, inputs: Sequence[object]) -> list[object] | None:
    names = [value.name for value in session.get_inputs()]
    feeds = {name: _array(value) for name, value in zip(names, inputs, strict=False)}
    try:
        return list(session.run(None, feeds))
    except Exception:  # a type that Python cannot give or take, or a test that onnxruntime fails
        return None


def _same(one: object, other: object) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if one is None or other is None:
        return one is other
    left, right = np.asarray(one), np.asarray(other)
    if left.dtype == object:
        return bool((left == right).all())
    return left.dtype == right.dtype and left.shape == right.shape and (
        left.tobytes() == right.tobytes()
    )  # fmt: skip


def _outcome(case: TestCase, path: Path) -> str:
    assert case.model is not None and case.data_sets is not None
    data = case.model.SerializeToString()
    try:
        source = _session(data)
    except Exception:
        return "not loaded"
    path.write_bytes(data)
    loaded = load.run(ModelSource(name="m", path=path)).model
    written = canonical.serialize(loaded)
    if not _is_disputed(case):
        onnx.checker.check_model(written)
    path.write_bytes(written)
    assert canonical.is_canonical(path)
    target = _session(written)
    assert _border(target) == _border(source, shaped=not _is_disputed(case))
    compared = 0
    for inputs, _ in case.data_sets:
        expected = _run(source, inputs)
        if expected is not None:
            assert _same(_run(target, inputs), expected)
            compared += 1
    return "compared" if compared else "loaded"


@pytest.mark.filterwarnings("ignore")  # onnx computes infinities on purpose
def test_every_node_test_computes_the_same(
    tmp_path: Path, onnx_node_tests: Sequence[TestCase], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    found: Counter[str] = Counter()
    failed = {}
    for case in onnx_node_tests:
        try:
            found[_outcome(case, tmp_path / "m.onnx")] += 1
        except Exception as error:
            failed[case.name] = f"{type(error).__name__}: {error}"
    assert not failed
    assert found["compared"] > 1400, found
    assert found["loaded"] <= 150, found
