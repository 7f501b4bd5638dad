"""The parts of a composition: what they are, and that no name is two parts'."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import onnx_ir as ir
from msgspec import Struct

from epctx.errors import ManifestError
from epctx.graph import uses
from epctx.graph.dataflow import bound_by_name, subgraphs
from epctx.graph.join.wiring import Port, Wiring, free_prefix

_COPY_OPSET: Final = 21


class Part(Struct, frozen=True, kw_only=True, eq=False):
    """A model to join; it is used up.

    Attributes:
        model: its EPContext nodes already refer to the files of the whole.
        prefix: before its names.
        fixed: names of EPContext nodes that stay as they are.
        kept: names of values that stay as they are: an EP finds its graph's ends by them.
        data: location of external data to that in the whole.
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
            for known, found in ((self._inputs, graph.inputs), (self._outputs, graph.outputs)):
                for value in found:
                    known[Port(part=part.name, name=value.name or "")] = value

    def input(self, port: Port) -> ir.Value:
        """A part's input, as the part has it."""
        return self._inputs[port]

    def output(self, port: Port) -> ir.Value:
        """What a part's output is; an input that it passes through is what feeds that."""
        value = self._outputs[port]
        while value in self._instead:
            value = self._instead[value]
        return value

    def is_renamed(self, port: Port, name: str | None) -> bool:
        """Whether an input keeps a name that is not that of the value that feeds it."""
        return port.name in self._kept[port.part] and port.name != name

    def feed(self, port: Port, value: ir.Value, graph: ir.Graph) -> None:
        """Let a value stand for an input, under the input's name if that has to stay."""
        own = self._inputs[port]
        self._instead[own] = value
        if self.is_renamed(port, value.name):
            value = renamed(graph, value, port.name)
        uses.replace_all(own, value)


def renamed(graph: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    """Another name for a value.

    ONNX Runtime removes an Identity, and gives its name to the node before it or that before it to
    the node behind, whose EP then does not find its graph's ends any more (onnxruntime 1.31.1 with
    OpenVINO). A Concat of one tensor stays; a scalar has no axis for it.
    """
    graph.opset_imports.setdefault("", _COPY_OPSET)
    if value.shape is not None and len(value.shape) > 0:
        node = ir.node("Concat", [value], attributes={"axis": 0}, name=f"{name}_renamed")
    else:
        node = ir.node("Identity", [value], name=f"{name}_renamed")
    made = node.outputs[0]
    made.name, made.type, made.shape = name, value.type, value.shape
    graph.append(node)
    return made


def refuse_clashes(parts: Sequence[Part], wiring: Wiring, values: Values, where: str) -> None:
    """Every name of a value or node is of one value or node only."""
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
    """What a graph's nodes make, and its initializers."""
    yield from made(graph)
    yield from graph.initializers.values()


def _claim(kind: str, own: Sequence[str], seen: dict[str, str], part: Part, where: str) -> None:
    for name in own:
        if name in seen and name in part.kept:
            raise ManifestError(
                f'{seen[name]} and the part {part.name} both have a {kind} "{name}"',
                where=where,
                why=f"an EP of {part.name} finds the ends of its graph by their names, so a prefix "
                "leaves it alone",
                remedy=f'rename "{name}" in one of the source models, and build it again',
            )
        if name in seen:
            bare = [each.removeprefix(part.prefix) for each in own]
            prefix = free_prefix(part.name, seen, bare)
            raise ManifestError(
                f'{seen[name]} and the part {part.name} both have a {kind} "{name}"',
                where=where,
                remedy=f"give {part.name} a prefix: `prefix: {prefix}`",
            )
    if kind == "value" and len(set(own)) < len(own):  # an output was given a name of another value
        raise _taken(next(name for name in own if own.count(name) > 1), where)
    seen.update(dict.fromkeys(own, f"the part {part.name}"))


def _taken(name: str, where: str) -> ManifestError:
    return ManifestError(
        f'there is another value "{name}" inside the parts',
        where=f"{where}.outputs",
        remedy="give the output another name",
    )


def _claim_contexts(names: Iterable[str], seen: dict[str, str], part: Part, where: str) -> None:
    """EPContext nodes whose EP finds its graph by their names."""
    for name in names:
        if name in seen:
            prefix = free_prefix(part.name, seen, [name])
            raise ManifestError(
                f'{seen[name]} and the part {part.name} both have an EPContext node "{name}"',
                where=where,
                why="its EP finds the graph by that name, so a part's prefix leaves it alone",
                remedy=f"build one of them with other names: `node_name_prefix: {prefix}` in the "
                f"group {part.group}, or the model under another key of `models`",
            )
        seen[name] = f"the part {part.name}"


def made(graph: ir.Graph) -> Iterator[ir.Value]:
    """What a graph's nodes make; not what is inside them."""
    return (value for node in graph for value in node.outputs)
