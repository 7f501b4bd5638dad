"""EPContext models joined into one graph.

Source: spec/ep-context-design.md ("merge and interconnect EPContext nodes generated from different
models"). Weights stay mapped. An EPContext node keeps the names that its EP finds its graph by
(real-eps.md section 2); everything else of a part gets the part's prefix. No name belongs to two
parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import onnx_ir as ir
from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import CompileError, ManifestError, ModelError
from epctx.graph import uses
from epctx.graph.dataflow import bound_by_name, subgraphs
from epctx.graph.epcontext import COMPATIBILITY, PIECES
from epctx.graph.partition import surgery
from epctx.graph.serde.encoder import CHECKSUM
from epctx.graph.serde.ordering import QUANTIZATION
from epctx.graph.weights import tensors
from epctx.graph.wiring import Port, Wiring, free_prefix

_COPY_OPSET: Final = 21


class Part(Struct, frozen=True, kw_only=True, eq=False):
    """A model to join, which the join consumes.

    Attributes:
        model: the model; its EPContext nodes already refer to the files of the whole.
        prefix: prefix of its names.
        fixed: EPContext nodes, by name, that keep their names.
        kept: values, by name, that keep their names: an EP finds its graph's inputs and outputs by
            them.
        data: locations of external data in the whole, by location in the part.
        group: the model group that built it, for messages.
    """

    name: str
    model: ir.Model
    prefix: str
    fixed: Collection[str]
    kept: Collection[str]
    data: Mapping[str, str]
    group: str


class Values:
    """The inputs and outputs of the parts, by their names before any renaming."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._inputs: dict[Port, ir.Value] = {}
        self._outputs: dict[Port, ir.Value] = {}
        self._instead: dict[ir.Value, ir.Value] = {}
        self._kept: dict[str, Collection[str]] = {}
        for part in parts:
            self._kept[part.name] = part.kept
            graph = part.model.graph
            for by_port, values in ((self._inputs, graph.inputs), (self._outputs, graph.outputs)):
                for value in values:
                    by_port[Port(part=part.name, name=value.name or "")] = value

    def input(self, port: Port) -> ir.Value:
        """Return a part's own value for an input."""
        return self._inputs[port]

    def output(self, port: Port) -> ir.Value:
        """Return the value of a part's output; a passed-through input becomes the value that feeds
        it.
        """
        value = self._outputs[port]
        while value in self._instead:
            value = self._instead[value]
        return value

    def is_renamed(self, port: Port, name: str | None) -> bool:
        """Tell whether an input keeps a name that differs from the name of its source."""
        return port.name in self._kept[port.part] and port.name != name

    def feed(self, port: Port, value: ir.Value, graph: ir.Graph) -> None:
        """Replace an input by a value, under the input's name if the name must stay."""
        own = self._inputs[port]
        self._instead[own] = value
        if self.is_renamed(port, value.name):
            value = renamed(graph, value, port.name)
        uses.replace_all(own, value)


def renamed(graph: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    """Return a copy of a value under another name.

    ONNX Runtime removes an Identity and renames a value of the node before or behind it, whose EP
    then no longer finds the inputs and outputs of its graph (onnxruntime 1.31.1 with OpenVINO).
    ONNX Runtime keeps a Concat of one tensor. A scalar, which has no axis, gets an Identity.
    """
    graph.opset_imports.setdefault("", _COPY_OPSET)
    if value.shape is not None and len(value.shape) > 0:
        node = ir.node("Concat", [value], attributes={"axis": 0}, name=f"{name}_renamed")
    else:
        node = ir.node("Identity", [value], name=f"{name}_renamed")
    copy = node.outputs[0]
    copy.name, copy.type, copy.shape = name, value.type, value.shape
    graph.append(node)
    return copy


def refuse_clashes(parts: Sequence[Part], wiring: Wiring, values: Values, where: str) -> None:
    """Raise ManifestError if two values, or two nodes, would have one name."""
    ends = {port: values.output(origin).name for port, origin in wiring.links.items()}
    ends |= {port: name for name, ports in wiring.inputs.items() for port in ports}
    gone = {values.input(p) for p, name in ends.items() if not values.is_renamed(p, name)}
    seen: dict[str, str] = dict.fromkeys(wiring.inputs, "the caller")
    nodes: dict[str, str] = {}
    for part in parts:
        graph = part.model.graph
        inner = [body for node in graph for body in subgraphs(node)]
        bound = {value for node in graph for value in bound_by_name(node)}
        inside = (v for body in inner for v in (*body.inputs, *defined(body)) if v not in bound)
        own = dict.fromkeys((*graph.inputs, *defined(graph), *inside))
        _claim("value", [v.name for v in own if v.name and v not in gone], seen, part, where)
        contexts = [n.name for n in graph if n.name and n.name in part.fixed]
        _claim_contexts(contexts, nodes, part, where)
        free = [n.name for n in graph if n.name and n.name not in part.fixed]
        free += [n.name for body in inner for n in body if n.name]
        _claim("node", free, nodes, part, where)
    for name, port in wiring.outputs.items():
        if values.output(port).name != name and name in seen:
            raise _taken(name, where)


def defined(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values that a graph's nodes make, without those in bodies, and its initializers."""
    yield from (value for node in graph for value in node.outputs)
    yield from graph.initializers.values()


def _claim(kind: str, own: Sequence[str], seen: dict[str, str], part: Part, where: str) -> None:
    for name in own:
        if name in seen and name in part.kept:
            raise ManifestError(
                f'{seen[name]} and the part {part.name} both have a {kind} "{name}"',
                where=where,
                why=f"an EP of {part.name} finds its graph's inputs and outputs by name, so no "
                "prefix is put before it",
                remedy=f'rename "{name}" in one of the source models, and build it again',
                code=Code.COMPOSITION,
            )
        if name in seen:
            bare = [each.removeprefix(part.prefix) for each in own]
            prefix = free_prefix(part.name, seen, bare)
            raise ManifestError(
                f'{seen[name]} and the part {part.name} both have a {kind} "{name}"',
                where=where,
                remedy=f"give {part.name} a prefix: `prefix: {prefix}`",
                code=Code.COMPOSITION,
            )
    if kind == "value" and len(set(own)) < len(own):  # an output got the name of another value
        raise _taken(next(name for name in own if own.count(name) > 1), where)
    seen.update(dict.fromkeys(own, f"the part {part.name}"))


def _taken(name: str, where: str) -> ManifestError:
    return ManifestError(
        f'a value inside the parts already has the name "{name}" of an output',
        where=f"{where}.outputs",
        remedy="give the output another name",
        code=Code.COMPOSITION,
    )


def _claim_contexts(names: Iterable[str], seen: dict[str, str], part: Part, where: str) -> None:
    """Refuse EPContext nodes of one name, since an EP finds its graph by the name."""
    for name in names:
        if name in seen:
            prefix = free_prefix(part.name, seen, [name])
            raise ManifestError(
                f'{seen[name]} and the part {part.name} both have an EPContext node "{name}"',
                where=where,
                why="its EP finds the graph by that name, so no prefix is put before it",
                remedy=f"build one of them with other names: `node_name_prefix: {prefix}` in the "
                f"group {part.group}, or the model under another key of `models`",
                code=Code.COMPOSITION,
            )
        seen[name] = f"the part {part.name}"


def join(name: str, parts: Sequence[Part], wiring: Wiring, *, where: str) -> ir.Model:
    """Join all parts to one model.

    Args:
        name: name of the graph.
        parts: parts in the order in which they run.
        wiring: wiring of these parts.
        where: the composition, for messages.

    Raises:
        ManifestError: two parts have one name; the remedy is a prefix.
        CompileError: a part has local functions.
        ModelError: the parts use operators of different opsets, or their compatibility info
            differs for one EP.
    """
    for part in parts:
        if part.model.functions:
            raise CompileError(
                "an EPContext model has local functions, which epctx inlines",
                where=f"part {part.name}",
                remedy="build it again with this epctx",
            )
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


def _rename(part: Part) -> None:
    """Put the prefix before every name that is not fixed."""
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
    """Return a dimension with the part's prefix: two parts may use one name for two sizes."""
    if isinstance(dim, int) or dim.value is None:
        return dim
    return ir.SymbolicDim(prefix + dim.value)


def _move_data(part: Part) -> None:
    """Let tensors refer to external data by its location in the whole."""

    def moved(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, ir.ExternalTensor) or str(tensor.location) not in part.data:
            return tensor
        location = part.data[str(tensor.location)]
        new = tensors.external(tensor, location, tensor.offset, tensor.length)
        new.meta[CHECKSUM] = tensor.meta.get(CHECKSUM)
        return new

    tensors.replace_all(part.model, moved)


def _name_ends(parts: Sequence[Part], wiring: Wiring, values: Values) -> None:
    """Give each output of the whole its name, unless its value must keep another one."""
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
        surgery.merge_opsets(whole, part.model)
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
    """Add the whole's outputs. A value is copied if it is an input, is already an output, or keeps
    another name.
    """
    given: set[ir.Value] = set()
    for name, port in wiring.outputs.items():
        value = values.output(port)
        if value.name != name or value in given or value.is_graph_input():
            value = renamed(graph, value, name)
        given.add(value)
        graph.outputs.append(value)


def _metadata(whole: ir.Model, parts: Sequence[Part], where: str) -> None:
    """Join the metadata of the parts. The parts must agree on the compatibility info of an EP;
    other values that differ are kept for each part. Cuts into pieces are left out, since the whole
    has none.

    Raises:
        ModelError: the parts are for different devices of an EP.
    """
    values: dict[str, dict[str, str]] = {}
    for part in parts:
        for key, value in part.model.metadata_props.items():
            if key != PIECES:
                values.setdefault(key, {})[part.name] = value
    for key, by_part in values.items():
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
