"""`unique-names`: keeps names of values apart between graphs while passes run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import onnx_ir as ir

from epctx.graph import dataflow
from epctx.graph.passes import edit
from epctx.graph.passes.base import CountingPass
from epctx.graph.serde.ordering import bodies

_GIVEN: Final = "epctx.names"
"""Key in the `meta` of a body, for the earlier names of its inputs and outputs."""


class UniqueNamesPass(CountingPass):
    """Rename values of subgraphs whose names values of other graphs also have.

    ONNX finds a value by its name, innermost graph first. So a pass that moves a value could make a
    name mean another one. The main graph's names stay. If an operator finds a body's inputs and
    outputs by name, `give_back` restores these names.
    """

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Return the count of renamed values."""
        for node in model.graph.all_nodes():
            for graph in _named(node):
                graph.meta[_GIVEN] = tuple(v.name for v in (*graph.inputs, *graph.outputs))
        taken = {str(value.name) for value in _values(model.graph)}
        counters: dict[str, int] = {}
        count = 0
        for graph in model.graph.subgraphs():
            for value in _values(graph):
                name = str(value.name)
                if name in taken:
                    value.name = name = _next(name, taken, counters)
                    count += 1
                taken.add(name)
        return {"values": count}


def give_back(model: ir.Model) -> None:
    """Restore names of bodies' inputs and outputs if the operator may find them by name."""
    editor = edit.Editor(model)
    for node in list(model.graph.all_nodes()):
        for graph in _named(node):
            names = graph.meta.pop(_GIVEN, ())
            for value, name in zip((*graph.inputs, *graph.outputs), names, strict=False):
                value.name = name
            _keep_apart(node, graph, editor)


def _named(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the bodies of a node whose operator may find inputs and outputs by name."""
    if node.domain:
        yield from bodies(node.attributes.values())


def _keep_apart(node: ir.Node, graph: ir.Graph, editor: edit.Editor) -> None:
    """Rename outer values whose name the body also defines: passes may have moved them."""
    own = {value.name for value in _values(graph)}
    inside = set(dataflow.subgraphs(node))
    for value in dict.fromkeys(dataflow.captured(node)):
        if value.name not in own or value.graph in inside:
            continue
        name = editor.free_name(str(value.name))
        if not value.is_graph_input() and not value.is_graph_output():
            value.name = name
            continue
        copy = ir.Value(name=name, type=value.type, shape=value.shape)
        identity = ir.Node("", "Identity", [value], outputs=[copy], name=editor.free_name(name))
        outer, producer = value.graph, value.producer()
        assert isinstance(outer, ir.Graph)
        if producer is None:
            outer.insert_before(outer[0], identity)
        else:
            outer.insert_after(producer, identity)
        for user, index in tuple(value.uses()):
            if user.graph in inside:
                user.replace_input_with(index, copy)


def _values(graph: ir.Graph) -> list[ir.Value]:
    """Return named values that a graph defines, each once."""
    values = dict.fromkeys((*graph.inputs, *graph.initializers.values()))
    values.update(dict.fromkeys(v for node in graph for v in node.outputs if v.name))
    return list(values)


def _next(name: str, taken: set[str], counters: dict[str, int]) -> str:
    while True:
        counters[name] = counters.get(name, 0) + 1
        candidate = f"{name}_{counters[name]}"
        if candidate not in taken:
            return candidate
