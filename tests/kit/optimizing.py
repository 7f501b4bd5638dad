"""Optimize small models and compare, bit for bit, with what they were."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort

from epctx.graph.model import LoadedModel, OptimizedModel
from epctx.graph.serde import canonical
from epctx.manifest import ModelSource, OptimizeSettings
from epctx.stages import load, optimize

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]


def loaded(source: ir.Model | onnx.ModelProto, folder: Path, **fixed: int) -> LoadedModel:
    """The model, written to `folder` and loaded; `fixed` are its dimensions."""
    path = folder / "source.onnx"
    proto = ir.serde.serialize_model(source) if isinstance(source, ir.Model) else source
    path.write_bytes(proto.SerializeToString())
    return load.run(ModelSource(name="source", path=path, dimensions=fixed))


def settings(*passes: str) -> OptimizeSettings:
    """A level by its name, or passes by theirs."""
    if passes in (("none",), ("basic",), ("extended",)):
        return OptimizeSettings(level=passes[0])
    return OptimizeSettings(level="explicit", passes=passes)


def optimized(
    source: ir.Model | onnx.ModelProto, *passes: str, scratch: Path | None = None, **fixed: int
) -> OptimizedModel:
    """The model after a level or passes; without `scratch` what it needs of files is kept open."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = scratch or Path(folder)
        return optimize.run(loaded(source, Path(folder), **fixed), settings(*passes), place)


def check(source: ir.Model, feeds: Feeds, *passes: str, level: str = "basic") -> OptimizedModel:
    """Optimize, and assert that names and, bit for bit, outputs are as before."""
    before = run(ir.serde.serialize_model(source).SerializeToString(), feeds)
    result = optimized(source, *(passes or (level,)))
    after = run(canonical.serialize(result.model), feeds)
    assert names(result.model.graph.inputs) == names(source.graph.inputs)
    assert names(result.model.graph.outputs) == names(source.graph.outputs)
    assert_same_bits(after, before)
    return result


def session(model: bytes | Path) -> ort.InferenceSession:
    """A session of ONNX Runtime's CPU EP, which is told to optimize nothing itself."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(model: bytes | Path, feeds: Feeds) -> Sequence[Array]:
    """Outputs in such a session."""
    found: Sequence[Array] = session(model).run(None, dict(feeds))
    return found


def assert_same_bits(found: Sequence[object], wanted: Sequence[object]) -> None:
    """Types, shapes and bits are equal; sequences element by element."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if isinstance(other, list):
            assert isinstance(one, list)
            assert_same_bits(one, other)
        elif other is None:
            assert one is None
        else:
            left, right = np.asarray(one), np.asarray(other)
            assert (left.dtype, left.shape) == (right.dtype, right.shape)
            equal = left.tolist() == right.tolist() if left.dtype == object else None
            assert equal if equal is not None else left.tobytes() == right.tobytes()


def names(values: Sequence[ir.Value]) -> list[str | None]:
    """The values' names."""
    return [value.name for value in values]


def ops(model: OptimizedModel | ir.Model) -> Counter[str]:
    """How many nodes of each op the main graph has."""
    graph = model.model.graph if isinstance(model, OptimizedModel) else model.graph
    return Counter(node.op_type for node in graph)


def changes(model: OptimizedModel) -> dict[str, Mapping[str, int]]:
    """The passes that changed something, with what they did."""
    return {record.name: record.changed for record in model.passes if record.changed}


def constants(model: OptimizedModel) -> dict[str, Array]:
    """The initializers of the main graph."""
    return {
        name: value.const_value.numpy()
        for name, value in model.model.graph.initializers.items()
        if value.const_value is not None
    }
