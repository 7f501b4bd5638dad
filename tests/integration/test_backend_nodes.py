"""ONNX's own node tests, each through the whole pipeline and the runtime.

Whatever ONNX Runtime's CPU EP passes by itself passes through epctx, with the reference EP taking
all that it can; there is no exception. Of onnx 1.23.2's 1,884 tests, onnxruntime 1.32.0 loads
1,765 and passes 1,675: the reference EP takes 1,548 of these whole, and of 127 nothing (strings,
sequences, float8 at the model's border, which no EPContext node may have). The other 90, some of
which have inputs that onnxruntime cannot be given from Python (int4, int2), are built and loaded.
onnxruntime 1.31.1 loads 1,515 (no opset 27 and 28) and passes 1,449.
"""

from __future__ import annotations

import logging
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.runner import Runner

from epctx.inference.values import to_python, to_value
from epctx.manifest import ModelSource, OptimizeSettings, PartitionSettings
from epctx.providers.base import SessionGroupSpec
from epctx.providers.reference import ReferenceExecutionProvider
from epctx.runtime import InferenceSession
from epctx.stages import compile, load, optimize, partition

PARTS = 8
"""The tests are run in so many parts, which workers of pytest can take side by side."""


def outcome(case: TestCase, folder: Path) -> str:
    """Take a test through epctx; say how much the reference EP took, or why there is no result.

    Raises whatever is wrong: it does not build, does not load, or computes something else.
    """
    assert case.model is not None and case.data_sets is not None
    folder.mkdir()
    path = folder / "model.onnx"
    path.write_bytes(case.model.SerializeToString())
    try:
        alone = ort.InferenceSession(str(path), _quiet(), providers=["CPUExecutionProvider"])
    except Exception:
        return "not loaded"
    passed = _passes_alone(case, alone)
    taken = _build(path, folder)
    # By name: to look for an EP among all installed packages takes longer than such a model.
    took = taken != "nothing to take"
    providers = ["ReferenceExecutionProvider" if took else "CPUExecutionProvider"]
    with InferenceSession(folder / "model_ctx.onnx", providers=providers) as session:
        if not passed:
            return "not passed"
        for inputs, expected in case.data_sets:
            feeds = _feeds([value.name for value in session.get_inputs()], inputs)
            _compare(case, expected, session.run(None, feeds))
    return taken


def _quiet() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


def _passes_alone(case: TestCase, session: ort.InferenceSession) -> bool:
    assert case.data_sets is not None
    names = [value.name for value in session.get_inputs()]
    outputs = [value.name for value in session.get_outputs()]
    try:
        for inputs, expected in case.data_sets:
            feeds = _feeds(names, inputs)
            plain = all(isinstance(to_value(value), ort.OrtValue) for value in feeds.values())
            if plain:
                values = {name: to_value(value) for name, value in feeds.items()}
                found = session.run_with_ort_values(outputs, values)
                results = [to_python(v) if v.is_tensor() else v for v in found]
            if not plain or any(isinstance(result, ort.OrtValue) for result in results):
                results = session.run(outputs, feeds)
            _compare(case, expected, results)
    except Exception:
        return False
    return True


def _build(path: Path, folder: Path) -> str:
    """Load, optimize, partition, compile and dump; say how much the reference EP took."""
    loaded = load.run(ModelSource(name="model", path=path))
    optimized = optimize.run(loaded, OptimizeSettings(level="basic"), _made(folder / "weights"))
    provider = ReferenceExecutionProvider({})
    parted = partition.run(optimized, [provider], PartitionSettings())
    providers = [provider] if parted.partitions else []
    spec = SessionGroupSpec(
        models=("model",),
        embed_mode=0,
        node_name_prefix="",
        session_options={},
        folder=_made(folder / "scratch"),
    )
    count = len(parted.partitions)
    with compile.run([parted], providers, spec) as compiled:
        compile.dump(compiled, folder)
    return "in parts" if count > 1 else "whole" if count else "nothing to take"


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _feeds(names: Sequence[str], inputs: Sequence[object]) -> dict[str, object]:
    return {name: _array(value) for name, value in zip(names, inputs, strict=False)}


def _array(value: object) -> object:
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _compare(case: TestCase, expected: Sequence[object], found: Sequence[object]) -> None:
    wanted = [_array(value) for value in expected]
    Runner.assert_similar_outputs(wanted, found, rtol=case.rtol, atol=case.atol)


@pytest.mark.wide(8)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_node_test_that_onnxruntime_passes_passes(
    part: int, tmp_path: Path, onnx_node_tests: Sequence[TestCase], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="onnx_ir")
    found: Counter[str] = Counter()
    failed: dict[str, str] = {}
    for case in onnx_node_tests:
        if zlib.crc32(case.name.encode()) % PARTS == part:
            try:
                found[outcome(case, tmp_path / case.name)] += 1
            except Exception as error:
                failed[case.name] = f"{type(error).__name__}: {error}"
    assert not failed
    # Of about 235 tests each; a run in which nothing is compared must not look like a pass.
    assert found["whole"] > 120 and found["not passed"] < 20, found
