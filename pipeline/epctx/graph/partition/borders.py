"""Borders where graphs meet: values that may cross, and names that stay unique.

Inputs and outputs of an EPContext node may have only some types. Source: the EPContext op's schema
in onnxruntime 1.31.1 (`T`), and real-eps.md sections 14 and 15: at load, ONNX Runtime refuses
another type with INVALID_GRAPH, and also an output without type and shape.

ONNX wants the values of a graph named apart from each other and from those of its subgraphs. The
same graphs always get the same names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

from epctx.errors import CompileError
from epctx.graph.dataflow import Dataflow, bound_by_name, subgraphs
from epctx.graph.epcontext import is_epcontext
from epctx.graph.partition.assign import Bond, Border
from epctx.graph.serde.types import MapType

TYPES = frozenset(
    {
        ir.DataType.BOOL,
        ir.DataType.INT8,
        ir.DataType.INT16,
        ir.DataType.INT32,
        ir.DataType.INT64,
        ir.DataType.UINT8,
        ir.DataType.UINT16,
        ir.DataType.UINT32,
        ir.DataType.UINT64,
        ir.DataType.FLOAT16,
        ir.DataType.FLOAT,
        ir.DataType.DOUBLE,
        ir.DataType.BFLOAT16,
    }
)
"""Element types of the tensors that an EPContext node accepts."""

UNKNOWN_RANK = "unknown rank of a value that would leave the partition"


def border_of(flow: Dataflow) -> Border:
    """Return the border of a model, with bonds for values that may not cross the border of a
    partition, or may not leave one.
    """
    crossing = {v: uses for v, uses in flow.consumers.items() if not flow.is_constant(v)}
    for value in flow.producer:
        if flow.is_output(value):
            crossing.setdefault(value, [])
    bonds = [bond for value in crossing if (bond := _bond(flow, value, crossing[value]))]
    return Border(constant=flow.constants(), exposed=flow.exposed(), must_stay_together=bonds)


def _bond(flow: Dataflow, value: ir.Value, consumers: Iterable[int]) -> Bond | None:
    barred = refused(value)
    shapeless = value.shape is None and value in flow.producer
    if barred is None and not shapeless:
        return None
    return Bond(
        producer=flow.producer.get(value, -1),
        consumers=tuple(consumers),
        exposed=flow.is_output(value),
        one_way=barred is None,
        reason=barred or UNKNOWN_RANK,
    )


def refused(value: ir.Value) -> str | None:
    """Return why a value of this type may not cross a partition's border; None if it may."""
    if value.type is None:
        return "unknown type at the partition boundary"
    if isinstance(value.type, ir.TensorType):
        if value.type.dtype in TYPES:
            return None
        if value.type.dtype == ir.DataType.UNDEFINED:
            return "unknown type at the partition boundary"
    return f"type {type_name(value.type)} at the partition boundary"


def type_name(of: ir.TypeProtocol) -> str:
    """Return a type for users: `float8e4m3fn`, `sequence(string)`, `map(int64, float)`."""
    if isinstance(of, ir.SequenceType | ir.OptionalType):
        kind = "sequence" if isinstance(of, ir.SequenceType) else "optional"
        return f"{kind}({type_name(of.elem_type)})"
    if isinstance(of, MapType):
        return f"map({of.key_type.name.lower()}, {type_name(of.value_type)})"
    name = of.dtype.name.lower()
    return f"sparse({name})" if isinstance(of, ir.SparseTensorType) else name


class Names:
    """Names in use while fragments are put into a graph.

    Nodes of the graph that stay keep their names. If an EPContext node of a fragment has such a
    name, the graph's node gets another.

    Args:
        graph: the graph that the fragments are put into.
        fragments: fragments whose outputs replace values of the graph with the same name.
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
        """Reserve `wanted`, or `wanted` with the first number that makes it unique, for a value."""
        name = first_free(wanted, (self._values, self._inner))
        self._values.add(name)
        return name

    def node(self, wanted: str) -> str:
        """Reserve a name for a node, as `value` does."""
        name = first_free(wanted, (self._nodes,))
        self._nodes.add(name)
        return name

    def assign(self, fragment: ir.Graph, kept: Collection[ir.Value]) -> None:
        """Rename a fragment's nodes and values whose names are in use, except `kept`."""
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
    """Yield the values that a node's subgraphs define, and that may be renamed."""
    bound = set(bound_by_name(node))
    for graph in subgraphs(node):
        outputs = (value for inner in graph for value in inner.outputs if value.name)
        values = (*graph.inputs, *graph.initializers.values(), *outputs)
        yield from (value for value in values if value not in bound)


def first_free(wanted: str, taken: Sequence[Collection[str | None]]) -> str:
    """Return `wanted`, or `wanted` with the first number that is in none of `taken`."""
    name, number = wanted, 0
    while any(name in names for names in taken):
        number += 1
        name = f"{wanted}_{number}"
    return name
