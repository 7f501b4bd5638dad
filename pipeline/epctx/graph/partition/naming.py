"""Names where graphs meet: every name stays unique, and the same graphs always get the same names.

ONNX wants the values of a graph named apart from each other and from those of its subgraphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

from epctx.errors import CompileError
from epctx.graph.dataflow import bound_by_name, subgraphs
from epctx.graph.epcontext import is_epcontext


class Names:
    """The names in use when fragments are put into a graph.

    Nodes of the graph that stay keep their names, unless an EPContext node of a fragment has it:
    then the graph's node gets another.

    Args:
        graph: where the fragments go.
        fragments: their outputs take the place of values of the graph with the same name.
        gone: nodes of the graph that the fragments replace.

    Raises:
        CompileError: two EPContext nodes have one name.
    """

    def __init__(
        self, graph: ir.Graph, fragments: Sequence[ir.Graph], gone: Collection[ir.Node]
    ) -> None:
        stays = [node for node in graph if node not in gone]
        new = [node for fragment in fragments for node in fragment]
        self._values = {value.name for value in graph.inputs} | set(graph.initializers)
        self._values.update(value.name for node in stays for value in node.outputs)
        self._values.update(value.name for fragment in fragments for value in fragment.outputs)
        self._inner = {value.name for node in (*stays, *new) for value in _inner_values(node)}
        contexts = Counter(node.name for node in (*stays, *new) if is_epcontext(node))
        name, count = next(iter(contexts.most_common(1)), ("", 0))
        if count > 1:
            raise CompileError(
                f'{count} EPContext nodes are named "{name}"',
                where=f"graph {graph.name}",
                why="an execution provider finds its graph by the node's name",
                remedy="report it to those who make this execution provider",
            )
        self._nodes: set[str | None] = set(contexts)
        for node in stays:
            self._name_node(node)

    def value(self, wanted: str) -> str:
        """`wanted`, or with the first number that makes it unique; from now on in use."""
        name = first_free(wanted, (self._values, self._inner))
        self._values.add(name)
        return name

    def node(self, wanted: str) -> str:
        """As `value`, for the name of a node."""
        name = first_free(wanted, (self._nodes,))
        self._nodes.add(name)
        return name

    def assign(self, fragment: ir.Graph, kept: Collection[ir.Value]) -> None:
        """Rename a fragment's nodes and what they make, except `kept`, where names are in use."""
        for node in fragment:
            self._name_node(node)
            for value in node.outputs:
                if value.name and value not in kept:
                    value.name = self.value(value.name)
        for node in fragment:
            for value in _inner_values(node):
                if value.name and value.name in self._values:
                    value.name = first_free(value.name, (self._values, self._inner))
                    self._inner.add(value.name)

    def _name_node(self, node: ir.Node) -> None:
        if node.name and not is_epcontext(node):
            node.name = self.node(node.name)


def _inner_values(node: ir.Node) -> Iterator[ir.Value]:
    """The values that a node's subgraphs define, and that may have any name."""
    bound = set(bound_by_name(node))
    yield from (value for value in _defined(node) if value not in bound)


def _defined(node: ir.Node) -> Iterator[ir.Value]:
    for graph in subgraphs(node):
        yield from graph.inputs
        yield from tuple(graph.initializers.values())
        yield from (value for inner in graph for value in inner.outputs if value.name)


def first_free(wanted: str, taken: Sequence[Collection[str | None]]) -> str:
    """Return `wanted`, or `wanted` with the first number that is in none of `taken`."""
    name, number = wanted, 0
    while any(name in names for names in taken):
        number += 1
        name = f"{wanted}_{number}"
    return name
