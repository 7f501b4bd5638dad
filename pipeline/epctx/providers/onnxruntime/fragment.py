"""What a generating session wrote, read back: an EPContext model in the place of a partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from epctx.errors import CompileError
from epctx.graph import epcontext
from epctx.graph.model import Partition

_REPORT = "report it with the model and the versions of onnxruntime and of the EP"


def read(path: Path, partition: Partition, sources: frozenset[str], *, provider: str) -> ir.Model:
    """The model at `path`, its weights those of the source, its EPContext nodes with full types.

    Raises:
        CompileError: it is not what a generating session of this EP owes.
    """
    model = ir.load(path)
    _take_source_tensors(model, partition)
    _describe_outputs(model, partition, provider=provider)
    for node in contexts(model):
        source = epcontext.EPContextNode.from_ir(node).source
        if source not in sources:
            raise CompileError(
                f"EPContext node {node.name!r} has the source {source!r}",
                where=f"{provider}, {path.name}",
                why=f"this execution provider's are {', '.join(sorted(sources))}",
                remedy=_REPORT,
            )
    return model


def contexts(model: ir.Model) -> list[ir.Node]:
    """The EPContext nodes of a model's main graph, in its order."""
    return [node for node in model.graph if epcontext.is_epcontext(node)]


def _take_source_tensors(model: ir.Model, partition: Partition) -> None:
    """Put the source's tensors in the place of ONNX Runtime's copies of them.

    So the weights of what stays on the CPU are references again, and nothing of ONNX Runtime's
    external file is needed any more.
    """
    known = {value.name: value.const_value for value in partition.initializers}
    for name, value in model.graph.initializers.items():
        tensor = known.get(name)
        copy = value.const_value
        if (
            tensor is not None
            and copy is not None
            and (tensor.dtype, tensor.shape) == (copy.dtype, copy.shape)
        ):
            value.const_value = tensor


def _describe_outputs(model: ir.Model, partition: Partition, *, provider: str) -> None:
    """Give every output type and shape, an EPContext node's without fail (section 14)."""
    source: Mapping[str | None, ir.Value] = {
        value.name: value for node in partition.nodes for value in node.outputs
    }
    for node in model.graph:
        for value in node.outputs:
            known = source.get(value.name)
            if value.type is None and known is not None:
                value.type = known.type
            if value.shape is None and known is not None and known.shape is not None:
                value.shape = known.shape.copy()
            bare = value.name and (value.type is None or value.shape is None)
            if bare and epcontext.is_epcontext(node):
                raise CompileError(
                    f"output {value.name!r} of EPContext node {node.name!r} has no type or shape",
                    where=provider,
                    why="ONNX Runtime cannot load such a model",
                    remedy="give the source model a value_info for it, or keep the nodes around "
                    "it off the EP with `partition: {exclude: {nodes: [...]}}`",
                )


def rename_binaries(model: ir.Model, names: Mapping[str, str]) -> None:
    """Let the EPContext nodes refer to their binaries by new names."""
    for node in contexts(model):
        path = epcontext.EPContextNode.from_ir(node).context_path
        if path is not None and path in names:
            node.attributes["ep_cache_context"] = ir.AttrString("ep_cache_context", names[path])


def binaries(model: ir.Model) -> list[str]:
    """The binaries that the EPContext nodes refer to, each once, in order."""
    paths = (epcontext.EPContextNode.from_ir(node).context_path for node in contexts(model))
    return list(dict.fromkeys(path for path in paths if path is not None))


def contexts_of(model: ir.Model, main: ir.Node) -> list[ir.Node]:
    """A main node and the nodes whose graphs are in its context: those until the next main one."""
    nodes = contexts(model)
    found = [main]
    for node in nodes[nodes.index(main) + 1 :]:
        if epcontext.EPContextNode.from_ir(node).main_context:
            break
        found.append(node)
    return found


def left(model: ir.Model, nodes: Iterable[ir.Node]) -> Sequence[ir.Node]:
    """Those of a partition's nodes that stayed on the CPU in what was compiled of it.

    They are known by their names; those without one by what they make.
    """
    stayed = [node for node in model.graph if not epcontext.is_epcontext(node)]
    names = {node.name for node in stayed}
    made = {value.name for node in stayed for value in node.outputs if value.name}
    return [
        node
        for node in nodes
        if (node.name in names if node.name else any(v.name in made for v in node.outputs))
    ]
