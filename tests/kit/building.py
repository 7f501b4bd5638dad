"""Small models, and builds of them by the stages themselves, for tests of providers and runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from epctx.graph.model import OptimizedModel
from epctx.graph.serde import canonical
from epctx.manifest import ExternalInitializers, ModelSource, OptionValue, PartitionSettings
from epctx.providers import registry
from epctx.providers.base import (
    ExecutionProvider,
    PartitionedModel,
    SessionGroupSpec,
)
from epctx.providers.reference import ReferenceExecutionProvider
from epctx.stages import compile, load, partition

Array = npt.NDArray[Any]
OPSET = 21


def mlp(
    *, batch: int = 1, width: int = 64, layers: int = 3, seed: int = 0, tail: str = "Tanh"
) -> onnx.ModelProto:
    """MatMul, Add, Relu in `layers` layers, then `tail`: weights of `4 * width**2` bytes each."""
    rng = np.random.default_rng(seed)
    nodes, weights, last = [], [], "x"
    for layer in range(layers):
        matrix = rng.standard_normal((width, width)).astype(np.float32) / np.float32(width**0.5)
        weights.append(numpy_helper.from_array(matrix, f"w{layer}"))
        bias = rng.standard_normal(width).astype(np.float32)
        weights.append(numpy_helper.from_array(bias, f"b{layer}"))
        nodes += [
            helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"], name=f"mm{layer}"),
            helper.make_node("Add", [f"m{layer}", f"b{layer}"], [f"a{layer}"], name=f"add{layer}"),
            helper.make_node("Relu", [f"a{layer}"], [f"r{layer}"], name=f"relu{layer}"),
        ]
        last = f"r{layer}"
    nodes.append(helper.make_node(tail, [last], ["y"], name="tail"))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "mlp",
        [value("x", TensorProto.FLOAT, [batch, width])],
        [value("y", TensorProto.FLOAT, [batch, width])],
        weights,
    )
    return model_of(graph)


def model_of(graph: onnx.GraphProto, opset: int = OPSET) -> onnx.ModelProto:
    """A checked model of a graph."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def partitioned(
    name: str,
    model: onnx.ModelProto | Path,
    providers: Sequence[ExecutionProvider],
    folder: Path,
    settings: PartitionSettings = PartitionSettings(),  # noqa: B008
) -> PartitionedModel:
    """Load and partition a model; a proto is saved into `folder` first."""
    path = model if isinstance(model, Path) else folder / f"{name}.source.onnx"
    if isinstance(model, onnx.ModelProto):
        onnx.save(model, path)
    loaded = load.run(ModelSource(name=name, path=path))
    digest = canonical.digest(loaded.model)
    optimized = OptimizedModel(name=name, model=loaded.model, passes=(), digest=digest)
    return partition.run(optimized, providers, settings)


def build(
    folder: Path,
    models: Mapping[str, onnx.ModelProto | Path],
    *,
    providers: Sequence[ExecutionProvider] | None = None,
    embed_mode: int = 0,
    prefix: str = "",
    settings: PartitionSettings = PartitionSettings(),  # noqa: B008
    external_initializers: ExternalInitializers | None = None,
) -> Path:
    """Build one session group into `folder / "out"`, and return that."""
    providers = [reference()] if providers is None else providers
    sources, scratch, out = folder / "sources", folder / "scratch", folder / "out"
    for each in (sources, scratch, out):
        each.mkdir(parents=True)
    spec = SessionGroupSpec(
        models=tuple(models),
        embed_mode=1 if embed_mode else 0,
        node_name_prefix=prefix,
        session_options={},
        folder=scratch,
    )
    parts = [partitioned(n, m, providers, sources, settings) for n, m in models.items()]
    with compile.run(parts, providers, spec) as compiled:
        compile.dump(compiled, out, external_initializers=external_initializers)
    return out


def reference(**options: OptionValue) -> ReferenceExecutionProvider:
    """A reference EP."""
    return ReferenceExecutionProvider(options)


def cpu(model: onnx.ModelProto | Path) -> ort.InferenceSession:
    """What onnxruntime makes of a model by itself."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    given = str(model) if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def native(
    path: Path, name: str, entries: Mapping[str, str] = MappingProxyType({})
) -> ort.InferenceSession:
    """A session of onnxruntime with an EP of its own, as an application makes it."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    provider = registry.bind(name, {})
    provider.add_to(options)
    return ort.InferenceSession(str(path), options, enable_fallback=0)


def normal(shape: Sequence[int], seed: int = 0) -> npt.NDArray[np.float32]:
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_close(found: Sequence[Array], wanted: Sequence[Array]) -> None:
    """Largest error at most 1e-5 of the output's largest magnitude."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        limit = 1e-5 * float(np.abs(other).max(initial=0.0))
        np.testing.assert_allclose(one, other, rtol=0, atol=limit)
