"""A model through all stages and back, beside what ONNX Runtime's kernels compute of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import onnxruntime as ort

from epctx.manifest import ModelSource, OptimizeSettings, PartitionSettings
from epctx.providers.base import SessionGroupSpec
from epctx.runtime import InferenceSession
from epctx.stages import compile, load, optimize, partition
from tests.kit.building import Array, reference

Level = Literal["none", "basic", "extended"]


def stock(path: Path, feeds: Mapping[str, Array]) -> Sequence[Array]:
    """What ONNX Runtime's kernels compute of a model, unoptimized."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found: Sequence[Array] = session.run(None, dict(feeds))
    return found


def through(
    path: Path,
    folder: Path,
    feeds: Mapping[str, Array],
    level: Level,
    dimensions: Mapping[str, int] | None = None,
) -> Sequence[Array]:
    """What epctx makes of a model on the reference EP: all stages, then a run of its files."""
    scratch, out = folder / "scratch", folder / "out"
    for each in (scratch, out):
        each.mkdir()
    source = ModelSource(name="model", path=path, dimensions=dimensions or {})
    settings = OptimizeSettings(level=level)
    optimized = optimize.run(load.run(source), settings, scratch)
    parted = partition.run(optimized, [reference()], PartitionSettings())
    spec = SessionGroupSpec(
        models=("model",), embed_mode=0, node_name_prefix="", session_options={}, folder=scratch
    )
    taken = bool(parted.partitions)
    with compile.run([parted], [reference()] if taken else [], spec) as compiled:
        compile.dump(compiled, out)
    name = "ReferenceExecutionProvider" if taken else "CPUExecutionProvider"
    with InferenceSession(out / "model_ctx.onnx", providers=[name]) as session:
        return session.run(None, dict(feeds))
