"""Canonical order of a graph's nodes, whatever order they are listed in.

Nodes come in depth-first order from the graph's outputs, inputs first, as a reader would follow
the data backwards. The order depends on edges alone, not on the list or on names of nodes. Finding
it takes linear time, and a value is used soon after it is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import onnx_ir as ir
from msgspec import Struct

from epctx.errors import EpctxError

QUANTIZATION: Final = "quant_parameter_tensor_names"
"""Key in `Value.meta` of onnx_ir's quantization annotations."""


class OrderedGraph(Struct, frozen=True, kw_only=True, eq=False):
    """A graph in canonical order.

    Attributes:
        nodes: all of its nodes, topologically sorted.
        used: values that the nodes, their bodies, or the graph's outputs read, in order of reading.
            The order of a body's outer values determines the order of the nodes outside.
        bodies: subgraphs of each node that has some, in the order of attribute names.
    """

    graph: ir.Graph
    nodes: Sequence[ir.Node]
    used: Mapping[ir.Value, None]
    bodies: Mapping[ir.Node, Sequence[OrderedGraph]]

    def initializers(self) -> list[tuple[str, ir.Value]]:
        """Return initializers that are read, are inputs, or quantize another value, by name."""
        values = (*self.graph.inputs, *self.used)
        values += tuple(output for node in self.nodes for output in node.outputs)
        parameters = {
            name for value in values for name in value.meta.get(QUANTIZATION, {}).values()
        }
        return [
            (name, value)
            for name, value in sorted(self.graph.initializers.items())
            if value in self.used or value.is_graph_input() or name in parameters
        ]


def order(graph: ir.Graph) -> OrderedGraph:
    """Order a graph and all of its subgraphs.

    Raises:
        EpctxError: the graph has a cycle; loaded models have none, so a stage made it.
    """
    ordered: dict[ir.Node, tuple[OrderedGraph, ...]] = {}
    reads: dict[ir.Node, dict[ir.Value, None]] = {}
    for node in graph:
        by_name = (attribute for _, attribute in sorted(node.attributes.items()))
        if inside := tuple(map(order, bodies(by_name))):
            ordered[node] = inside
        reads[node] = dict.fromkeys(value for value in node.inputs if value is not None)
        for body in ordered.get(node, ()):
            reads[node] |= {value: None for value in body.used if value.graph is not body.graph}
    read = {value for values in reads.values() for value in values}.union(graph.outputs)
    sinks = (node for node in graph if read.isdisjoint(node.outputs))
    roots = [value.producer() for value in graph.outputs] + sorted(sinks, key=_key)
    nodes = _depth_first([node for node in roots if node is not None], reads)
    if len(nodes) < len(reads):
        raise _cycle(graph)
    used = {value: None for node in nodes for value in reads[node]} | dict.fromkeys(graph.outputs)
    return OrderedGraph(graph=graph, nodes=nodes, used=used, bodies=ordered)


def _depth_first(
    roots: Sequence[ir.Node], reads: Mapping[ir.Node, Mapping[ir.Value, None]]
) -> list[ir.Node]:
    """Return the roots and all nodes that they need; producers before consumers."""
    done: dict[ir.Node, None] = {}
    active: set[ir.Node] = set()
    for root in roots:
        stack = [(root, _producers(reads[root]))] if root in reads and root not in done else []
        while stack:
            node, producers = stack[-1]
            active.add(node)
            for producer in producers:
                if producer in reads and producer not in done:
                    if producer in active:
                        raise _cycle(producer.graph)
                    stack.append((producer, _producers(reads[producer])))
                    break
            else:
                stack.pop()
                active.discard(node)
                done[node] = None
    return list(done)


def _producers(values: Mapping[ir.Value, None]) -> Iterator[ir.Node]:
    return (node for value in values if (node := value.producer()) is not None)


def bodies(attributes: Iterable[ir.Attr]) -> Iterator[ir.Graph]:
    """Yield the graphs that attributes hold, in order; not graphs nested in them."""
    for attribute in attributes:
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            yield from attribute.as_graphs()


def _key(node: ir.Node) -> tuple[str, ...]:
    """Return a sort key, distinct for nodes that make a value: each name is made once."""
    output = min((value.name for value in node.outputs if value.name), default="")
    read = ((value.name or "") if value is not None else "" for value in node.inputs)
    return output, node.domain, node.op_type, node.name or "", *read


def _cycle(graph: ir.Graph | None) -> EpctxError:
    return bug(f"graph {graph.name if graph else None!r} has a cycle")


def bug(what: str, *, where: str | None = None) -> EpctxError:
    """Return an error about a model that no stage may hand on."""
    remedy = "this is a bug of epctx or of a third party's pass: please report it"
    return EpctxError(what, where=where, remedy=remedy)
