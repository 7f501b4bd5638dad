"""Asking an EP, before anything is compiled, whether it takes something.

ONNX Runtime stops after the EP's answer with `session.disable_model_compile`, and says no more than
that something would be compiled (real-eps.md section 4). Asked of a model of one node, that is the
answer. It leaves no trace in what the process compiles afterwards (section 1).
"""

from __future__ import annotations

import tempfile
from collections.abc import Hashable
from pathlib import Path
from typing import Final

import onnx_ir as ir

from epctx.errors import CompileError, ModelError
from epctx.graph import soundness
from epctx.graph.dataflow import captured, subgraphs
from epctx.graph.model import Partition
from epctx.graph.partition import surgery
from epctx.graph.weights import tensors
from epctx.providers.onnxruntime import session, staging
from epctx.providers.onnxruntime.ep import OrtEp

_NOT_LOADED: Final = "Load model from"
"""Words in each error about a model that ONNX Runtime does not load, with any EP."""
_STANDS: Final = 4096
"""Bytes from which on a weight's content is left out: an EP decides by type and shape."""
_WEIGHTS: Final = "zeros.weights"


def takes_whole(model: ir.Model, node: ir.Node, provider: OrtEp) -> bool:
    """Whether the EP takes a node of the main graph, with everything in its bodies.

    Args:
        model: is not changed; no weight of it is read.

    Raises:
        CompileError: onnxruntime or the EP failed on it.
        ModelError: ONNX Runtime does not load it: at fixed sizes a body may be wrong.
        ProviderUnavailable: as from `add_to`.
    """
    # The path's string matters to nothing here: no byte of it is kept.
    with provider.compiling(), tempfile.TemporaryDirectory(prefix="epctx-probe-") as folder:
        path = write(model, part_of(node), Path(folder))
        try:
            return session.needs_compilation(str(path), provider)
        except CompileError as error:
            if _NOT_LOADED not in error.reason:
                raise
            raise ModelError(
                f"ONNX Runtime does not load its {node.op_type} with these sizes fixed",
                node=name_of(node),
                why=soundness.words(error.reason),
                remedy="give `dimensions` and `shapes` that all branches fit, or export the model "
                "with the branch alone that they are for",
            ) from error


def write(model: ir.Model, partition: Partition, folder: Path) -> Path:
    """A partition as a model for questions: of large weights it has type and shape alone.

    Args:
        model: is not changed; no weight of it is read.
        folder: an empty folder; the model is in it.
    """
    alone = surgery.extract(model, partition)
    staging.sink_captured_initializers(alone)
    for node in alone.graph:
        node.name = name_of(node)
    _leave_out_weights(alone, folder)
    path = folder / "probe.onnx"
    staging.write(alone, path)
    return path


def name_of(node: ir.Node) -> str:
    """What a node is called in such a model: one without a name after what it makes."""
    return node.name or "unnamed_" + "_".join(v.name for v in node.outputs if v.name)


def kind(node: ir.Node) -> Hashable:
    """What nodes have in common of which one answer is enough."""
    if any(True for _ in subgraphs(node)):
        return id(node)
    attributes = tuple(
        (name, str(attribute.value) if attribute.type != ir.AttributeType.TENSOR else "")
        for name, attribute in sorted(node.attributes.items())
    )
    edges = tuple(map(_edge, (*node.inputs, None, *node.outputs)))
    return (node.domain, node.op_type, attributes, edges)


def _edge(value: ir.Value | None) -> Hashable:
    if value is None:
        return None
    rank = None if value.shape is None else len(value.shape)
    return (value.dtype, rank, value.is_initializer())


def part_of(node: ir.Node) -> Partition:
    """A node of the main graph as a partition, with everything in its bodies."""
    own = {value for graph in subgraphs(node) for value in _made_in(graph)}
    used = dict.fromkeys(
        value for value in (*node.inputs, *captured(node)) if value is not None and value not in own
    )
    return Partition(
        provider=0,
        nodes=(node,),
        inputs=tuple(value for value in used if not value.is_initializer()),
        outputs=tuple(value for value in node.outputs if value.name),
        initializers=tuple(value for value in used if value.is_initializer()),
    )


def _made_in(graph: ir.Graph) -> list[ir.Value]:
    made = [value for node in graph for value in node.outputs]
    return [*made, *graph.inputs, *graph.initializers.values()]


def _leave_out_weights(model: ir.Model, folder: Path) -> None:
    """Let every large weight be zeros of one sparse file, as long as the largest."""
    longest = 0
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes < _STANDS:
                continue
            longest = max(longest, tensor.nbytes)
            value.const_value = tensors.external(tensor, _WEIGHTS, 0, tensor.nbytes, folder=folder)
    with (folder / _WEIGHTS).open("wb") as stream:
        stream.truncate(longest)
