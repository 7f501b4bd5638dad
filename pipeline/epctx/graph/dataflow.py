"""A model's main graph as integers: the nodes that each node needs, through subgraphs too.

A control-flow node is one node: values that its subgraphs take from outside are its inputs (design
section 7, "partition").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from epctx.errors import ModelError
from epctx.graph.model import Partition
from epctx.graph.serde import protos
from epctx.graph.serde.ordering import bodies


class Dataflow:
    """Values that flow between the nodes of a model's main graph.

    The constructor sorts the main graph if it is unsorted, and changes nothing else. The object is
    valid as long as the model does not change.

    Attributes:
        nodes: the main graph's nodes, in topological order; a node's integer is its position.
        uses: for each node, the main graph's values that it needs, without repeats: its inputs,
            then the values that its subgraphs capture.
        producer: the node that makes each value.
        consumers: the nodes that use each value, ascending.
        predecessors: for each node, the nodes whose values it uses, ascending.

    Raises:
        ModelError: the main graph has a cycle, or a node uses a value that nothing makes.
    """

    def __init__(self, model: ir.Model) -> None:
        graph = model.graph
        if not _is_sorted(graph):
            try:
                graph.sort()
            except ValueError as error:
                raise ModelError(
                    "the graph has a cycle",
                    where=f"graph {graph.name or '(without a name)'}",
                    remedy="export the model again: a node may not depend on its own output",
                ) from error
        self.nodes: Sequence[ir.Node] = tuple(graph)
        self.producer: dict[ir.Value, int] = {
            value: index for index, node in enumerate(self.nodes) for value in node.outputs
        }
        self._inputs = {value: place for place, value in enumerate(graph.inputs)}
        self._initializers = {
            value: place for place, value in enumerate(graph.initializers.values())
        }
        self._outputs = frozenset(graph.outputs)
        self.uses: list[tuple[ir.Value, ...]] = []
        self.consumers: dict[ir.Value, list[int]] = {}
        self.predecessors: list[list[int]] = []
        for index, node in enumerate(self.nodes):
            inner = filter(self._is_known, captured(node))
            inputs = (value for value in node.inputs if value is not None)
            used = tuple(dict.fromkeys((*inputs, *inner)))
            for value in used:
                if not self._is_known(value):
                    raise ModelError(
                        f'nothing makes "{value.name}"',
                        where=protos.describe(node),
                        remedy="export the model again: every input of a node is made by another "
                        "node, an initializer or a graph input",
                    )
                self.consumers.setdefault(value, []).append(index)
            self.uses.append(used)
            self.predecessors.append(
                sorted({self.producer[value] for value in used if value in self.producer})
            )

    def _is_known(self, value: ir.Value) -> bool:
        return value in self.producer or value in self._inputs or value in self._initializers

    def is_constant(self, value: ir.Value) -> bool:
        """Tell whether a value is an initializer that no caller of the model can replace.

        An initializer that is also a graph input is that input's default (IR version 4 and later;
        `load` brings older models up to it).
        """
        return value in self._initializers and value not in self._inputs

    def is_input(self, value: ir.Value) -> bool:
        """Tell whether the caller of the model gives a value."""
        return value in self._inputs

    def is_output(self, value: ir.Value) -> bool:
        """Tell whether a value is an output of the model."""
        return value in self._outputs

    def exposed(self) -> list[bool]:
        """Return for each node whether it makes an output of the model."""
        return [any(value in self._outputs for value in node.outputs) for node in self.nodes]

    def constants(self) -> list[bool]:
        """Return for each node whether all its inputs are known before the model runs."""
        constant: list[bool] = []
        for used in self.uses:
            constant.append(
                all(
                    constant[self.producer[value]]
                    if value in self.producer
                    else self.is_constant(value)
                    for value in used
                )
            )
        return constant

    def cut(self, provider: int, members: Iterable[int]) -> Partition:
        """Return the partition of these nodes; its values are in a fixed order."""
        inside = sorted(members)
        own = set(inside)
        used = dict.fromkeys(value for node in inside for value in self.uses[node])
        outside = [value for value in used if self.producer.get(value) not in own]
        inputs = [value for value in outside if not self.is_constant(value)]
        outputs = [
            value
            for node in inside
            for value in self.nodes[node].outputs
            if value in self._outputs or not own.issuperset(self.consumers.get(value, ()))
        ]
        return Partition(
            provider=provider,
            nodes=tuple(self.nodes[node] for node in inside),
            inputs=tuple(sorted(inputs, key=self._place)),
            outputs=tuple(outputs),
            initializers=tuple(
                sorted(
                    (value for value in outside if self.is_constant(value)),
                    key=self._initializers.__getitem__,
                )
            ),
        )

    def _place(self, value: ir.Value) -> tuple[int, int]:
        """Sort key: graph inputs in graph order, then node outputs in the order of their nodes."""
        if value in self._inputs:
            return (-1, self._inputs[value])
        return (self.producer[value], value.index() or 0)


def captured(node: ir.Node) -> Iterator[ir.Value]:
    """Yield every value that a node's subgraphs use, at any depth, their own values included."""
    for graph in subgraphs(node):
        yield from graph.outputs
        for inner in graph:
            yield from (value for value in inner.inputs if value is not None)


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs in a node's attributes, at any depth, outer ones first."""
    for graph in bodies(node.attributes.values()):
        yield graph
        for inner in graph:
            yield from subgraphs(inner)


def bound_by_name(node: ir.Node) -> Iterator[ir.Value]:
    """Yield inputs and outputs of a node's bodies, at any depth, that the operator finds by name.

    ONNX's own operators find them by position. BeamSearch, GreedySearch and Sampling of ONNX
    Runtime need an input named `input_ids`, and other operators may need names, too (onnxruntime
    1.31.1).
    """
    for graph in bodies(node.attributes.values()):
        if node.domain not in ("", "ai.onnx"):
            yield from (*graph.inputs, *graph.outputs)
        for inner in graph:
            yield from bound_by_name(inner)


def _is_sorted(graph: ir.Graph) -> bool:
    """Tell whether each node of the main graph comes after the nodes that it needs."""
    seen: set[ir.Value] = set()
    for node in graph:
        for values in (node.inputs, captured(node)):
            for value in values:
                producer = value.producer() if value is not None else None
                if producer is not None and producer.graph is graph and value not in seen:
                    return False
        seen.update(node.outputs)
    return True
