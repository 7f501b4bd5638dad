"""Small models for the conformance class, compiled by one provider into a folder.

Needs only the provider: no registry, no manifest, no optimization.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
from msgspec import Struct
from onnx import helper, numpy_helper

from epctx.files.outputs import context_file
from epctx.graph.dataflow import Dataflow
from epctx.graph.epcontext import EPContextNode, read_all
from epctx.graph.model import Replacement
from epctx.graph.partition import borders, surgery
from epctx.graph.partition.assign import assign
from epctx.graph.serde import canonical
from epctx.inference.loading import Loaded, load
from epctx.inference.options import SessionConfig
from epctx.inference.pipeline import ModelSource
from epctx.inference.values import to_python, to_value
from epctx.manifest import DEFAULT_EP
from epctx.providers.base import ExecutionProvider, PartitionedModel, SessionGroupSpec

Array = npt.NDArray[np.float32]
WIDTH = 64
BARRIER = "Sigmoid"
"""Op that `build` keeps off the provider if a test needs several partitions."""


def model(*, batch: int = 1, seed: int = 0, barriers: int = 0) -> onnx.ModelProto:
    """Make a model of MatMul, Add, Relu, then `barriers` times a Sigmoid and the same three ops.
    Weights have 16 KiB each.

    The weights depend only on `seed`, so models of several batches share them.
    """
    rng = np.random.default_rng(seed)
    nodes, weights, last = [], [], "x"
    for part in range(barriers + 1):
        for name, shape in ((f"w{part}", (WIDTH, WIDTH)), (f"b{part}", (WIDTH,))):
            values = rng.standard_normal(shape) / np.sqrt(WIDTH)
            weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        nodes.append(helper.make_node("MatMul", [last, f"w{part}"], [f"m{part}"], f"mm{part}"))
        nodes.append(helper.make_node("Add", [f"m{part}", f"b{part}"], [f"a{part}"], f"add{part}"))
        last = "y" if part == barriers else f"r{part}"
        nodes.append(helper.make_node("Relu", [f"a{part}"], [last], f"relu{part}"))
        if part < barriers:
            nodes.append(helper.make_node(BARRIER, [last], [f"s{part}"], f"barrier{part}"))
            last = f"s{part}"
    edge = [batch, WIDTH]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "conformance",
        [info("x", onnx.TensorProto.FLOAT, edge)],
        [info("y", onnx.TensorProto.FLOAT, edge)],
        weights,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(proto, strict_mode=True)


def feed(batch: int = 1, seed: int = 0) -> npt.NDArray[np.float32]:
    """Make an input for `model`."""
    return np.random.default_rng(seed).standard_normal((batch, WIDTH)).astype(np.float32)


def expected(proto: onnx.ModelProto, x: Array) -> Array:
    """Return the output of ONNX Runtime's CPU EP."""
    session = ort.InferenceSession(proto.SerializeToString(), providers=[DEFAULT_EP])
    (y,) = session.run(None, {"x": x})
    return np.asarray(y, np.float32)


class Built(Struct, frozen=True, kw_only=True):
    """A built session group.

    Attributes:
        folder: the models, `<name>_ctx.onnx`, and the binaries.
        nodes: for each model its EPContext nodes.
        binaries: names of the context binaries.
        compiled: for each model the workspace's result.
    """

    folder: Path
    nodes: Mapping[str, tuple[EPContextNode, ...]]
    binaries: tuple[str, ...]
    compiled: Mapping[str, Sequence[Replacement]]

    def path(self, name: str) -> Path:
        """Return a model's file."""
        return self.folder / context_file(name)

    def contents(self) -> dict[str, bytes]:
        """Return every file's bytes, by name."""
        return {file.name: file.read_bytes() for file in sorted(self.folder.iterdir())}


def partition(
    provider: ExecutionProvider, name: str, proto: onnx.ModelProto, *, split: bool = False
) -> PartitionedModel:
    """Partition a model for the provider. With `split`, BARRIER is kept off the provider."""
    graph = ir.serde.deserialize_model(proto)
    flow = Dataflow(graph)
    taken = set(provider.get_capability(graph).nodes)
    supported = [n in taken and not (split and n.op_type == BARRIER) for n in flow.nodes]
    border = borders.border_of(flow)
    quotient, _ = assign(flow.predecessors, [supported], border)
    return PartitionedModel(
        name=name,
        model=graph,
        partitions=tuple(flow.cut(owner, members) for owner, members in quotient.partitions()),
        declined=(),
        nodes=len(flow.nodes),
    )


def group(models: Sequence[str], folder: Path, *, embed: bool, prefix: str) -> SessionGroupSpec:
    """Describe a session group; the EP's scratch folder is in `folder`."""
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    return SessionGroupSpec(
        models=tuple(models),
        embed_mode=1 if embed else 0,
        node_name_prefix=prefix,
        session_options={},
        folder=scratch,
    )


def build(
    provider: ExecutionProvider,
    folder: Path,
    models: Mapping[str, onnx.ModelProto],
    *,
    embed: bool = False,
    prefix: str = "",
    split: bool = False,
) -> Built:
    """Compile models as one session group and write the results into `folder / "out"`."""
    parts = [partition(provider, name, proto, split=split) for name, proto in models.items()]
    out = folder / "out"
    out.mkdir(parents=True)
    workspace = provider.open_workspace(group(tuple(models), folder, embed=embed, prefix=prefix))
    try:
        compiled = {part.name: workspace.compile(part, part.partitions) for part in parts}
        binaries = workspace.finish()
        for binary in binaries:
            (out / binary.name).write_bytes(b"".join(binary.chunks()))
        for part in parts:
            surgery.splice(part.model, compiled[part.name])
            (out / context_file(part.name)).write_bytes(canonical.serialize(part.model))
    finally:
        workspace.close()
    return Built(
        folder=out,
        nodes={part.name: read_all(part.model) for part in parts},
        binaries=tuple(binary.name for binary in binaries),
        compiled=compiled,
    )


def open_session(
    provider: ExecutionProvider, given: Path | bytes, options: Mapping[str, str] | None = None
) -> Callable[[Array], Array]:
    """Load an EPContext model on the provider, and return a session that runs it."""
    config = SessionConfig.read(options)
    loaded: Loaded = load(ModelSource.of(given, config), config, options, [provider])

    def run(x: Array) -> Array:
        (y,) = loaded.pipeline.run(["y"], {"x": to_value(x)}, None)
        output: Array = np.asarray(to_python(y))
        return output

    return run
