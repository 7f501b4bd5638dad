"""EPContext models joined into one graph.

Source: spec/ep-context-design.md ("merge and interconnect EPContext nodes generated from different
models"). Weights stay mapped. An EPContext node keeps the names that its EP finds its graph by
(real-eps.md section 2); everything else of a part gets the part's prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from epctx.errors import CompileError, ModelError
from epctx.graph import opsets
from epctx.graph.dataflow import bound_by_name, subgraphs
from epctx.graph.epcontext import COMPATIBILITY, PIECES
from epctx.graph.join.parts import Part, Values, defined, refuse_clashes, renamed
from epctx.graph.join.wiring import Wiring
from epctx.graph.serde.encoder import CHECKSUM
from epctx.graph.serde.ordering import QUANTIZATION
from epctx.graph.weights import tensors


def join(name: str, parts: Sequence[Part], wiring: Wiring, *, where: str) -> ir.Model:
    """One model of all parts.

    Args:
        name: of the graph.
        parts: in the order in which they run.
        wiring: of these parts.
        where: the composition, for messages.

    Raises:
        ManifestError: two parts have one name; says which prefix would help.
        ModelError: the parts use operators of different opsets, or differ in what their
            compatibility info says of one EP.
    """
    _refuse_functions(parts)
    graph = ir.Graph([], [], nodes=[], opset_imports={}, name=name)
    whole = ir.Model(graph, ir_version=max(part.model.ir_version for part in parts))
    values = Values(parts)
    for part in parts:
        _rename(part)
        _move_data(part)
    _name_ends(parts, wiring, values)
    refuse_clashes(parts, wiring, values, where)
    for part in parts:
        _merge(whole, part, where)
    _metadata(whole, parts, where)
    for port, origin in wiring.links.items():
        values.feed(port, values.output(origin), graph)
    for outer, ports in wiring.inputs.items():
        first = values.input(ports[0])
        given = ir.Value(name=outer, type=first.type, shape=first.shape)
        graph.inputs.append(given)
        for port in ports:
            values.feed(port, given, graph)
    _outputs(graph, wiring, values)
    return whole


def _refuse_functions(parts: Iterable[Part]) -> None:
    for part in parts:
        if part.model.functions:
            raise CompileError(
                "an EPContext model has local functions, which epctx inlines",
                where=f"part {part.name}",
                remedy="build it again with this epctx",
            )


def _rename(part: Part) -> None:
    """Put the prefix before every name but those that are fixed."""
    if not part.prefix:
        return
    graph = part.model.graph
    bodies = [graph, *(body for node in graph for body in subgraphs(node))]
    bound = {value for node in graph for value in bound_by_name(node)}
    for value in dict.fromkeys(v for body in bodies for v in (*body.inputs, *defined(body))):
        if value.name and value.name not in part.kept and value not in bound:
            value.name = part.prefix + value.name
        if value.shape is not None:
            value.shape = ir.Shape([_dimension(part.prefix, dim) for dim in value.shape])
        annotation = value.meta.get(QUANTIZATION)
        if annotation:
            value.meta[QUANTIZATION] = {
                key: name if name in part.kept else part.prefix + name
                for key, name in annotation.items()
            }
    for node in (node for body in bodies for node in body):
        if node.name and node.name not in part.fixed:
            node.name = part.prefix + node.name


def _dimension(prefix: str, dim: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    """Two parts may mean two sizes by one name."""
    if isinstance(dim, int) or dim.value is None:
        return dim
    return ir.SymbolicDim(prefix + dim.value)


def _move_data(part: Part) -> None:
    """External data is found under the names that the whole has for it."""

    def moved(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, ir.ExternalTensor) or str(tensor.location) not in part.data:
            return tensor
        location = part.data[str(tensor.location)]
        new = tensors.external(tensor, location, tensor.offset, tensor.length)
        new.meta[CHECKSUM] = tensor.meta.get(CHECKSUM)
        return new

    tensors.replace_all(part.model, moved)


def _name_ends(parts: Sequence[Part], wiring: Wiring, values: Values) -> None:
    """Give what leaves the whole the name that it has there, where nothing else names it."""
    stay = {value for part in parts for value in part.model.graph.inputs}
    kept = {part.name: part.kept for part in parts}
    for name, port in wiring.outputs.items():
        value = values.output(port)
        if value not in stay and not value.is_initializer() and port.name not in kept[port.part]:
            value.name = name
            stay.add(value)


def _merge(whole: ir.Model, part: Part, where: str) -> None:
    """Move a part's nodes and weights into the whole."""
    try:
        opsets.merge_opsets(whole, part.model)
    except CompileError as error:
        raise ModelError(
            f"the part {part.name} uses other opsets than the parts before it",
            where=where,
            why=error.what,
            remedy="convert the source models to one opset (onnx.version_converter), or leave "
            "none of these operators to the default EP",
        ) from error
    graph = part.model.graph
    nodes, weights = list(graph), list(graph.initializers.values())
    graph.remove(nodes)
    graph.outputs.clear()
    graph.inputs.clear()
    graph.initializers.clear()
    whole.graph.extend(nodes)
    for value in weights:
        whole.graph.initializers.add(value)


def _outputs(graph: ir.Graph, wiring: Wiring, values: Values) -> None:
    """The whole's outputs; what is passed through, is one already, or keeps its name is copied."""
    given: set[ir.Value] = set()
    for name, port in wiring.outputs.items():
        value = values.output(port)
        if value.name != name or value in given or value.is_graph_input():
            value = renamed(graph, value, name)
        given.add(value)
        graph.outputs.append(value)


def _metadata(whole: ir.Model, parts: Sequence[Part], where: str) -> None:
    """Join the metadata of the parts. They must agree on an EP; other values that differ are kept
    by part. Their cuts into pieces are left out: the whole has none.

    Raises:
        ModelError: the parts are for different devices of an EP.
    """
    said: dict[str, dict[str, str]] = {}
    for part in parts:
        for key, value in part.model.metadata_props.items():
            if key != PIECES:
                said.setdefault(key, {})[part.name] = value
    for key, by_part in said.items():
        if len(set(by_part.values())) == 1:
            whole.metadata_props[key] = next(iter(by_part.values()))
        elif key.startswith(COMPATIBILITY):
            words = "; ".join(f"{part}: {value}" for part, value in by_part.items())
            raise ModelError(
                f"the parts are for different devices of {key.removeprefix(COMPATIBILITY)}",
                where=where,
                why=words,
                remedy="build them with the same options, by the same version of the EP",
            )
        else:
            whole.metadata_props.update({f"{part}.{key}": v for part, v in by_part.items()})
