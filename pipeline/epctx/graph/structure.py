"""Checks of a graph that onnx.checker does not make: limits, names and order of nodes.

ONNX Runtime sorts the nodes of a model itself, onnx.checker refuses an unsorted one, and neither
says which nodes a cycle goes through. `normalize` sorts the nodes, and its errors name the nodes at
fault.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

import onnx
from google.protobuf.internal.containers import (  # type: ignore[import-untyped]
    RepeatedCompositeFieldContainer,
)

from epctx import limits
from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.graph.serde import protos
from epctx.text import nearest

_Place = str | onnx.NodeProto
"""Maker or reader of a name: a node, or a description in words."""

_NEAR = 10_000
"""Maximum number of names that are searched for a near one."""


def normalize(model: onnx.ModelProto, *, where: str) -> None:
    """Check the names of every graph, and sort nodes where a producer comes after its consumer.

    Raises:
        ModelError: a name is made twice; a node or an output reads a name that nothing makes; the
            nodes make a cycle.
    """
    for function in model.functions:
        _Scope(f"function {function.domain}::{function.name}", where).function(function)
    _Scope("the graph", where).graph(model.graph)


class _Scope:
    """The names that one graph makes."""

    def __init__(self, what: str, where: str) -> None:
        self._what = what
        self._where = where
        self._makers: dict[str, _Place] = {}

    def graph(self, graph: onnx.GraphProto) -> None:
        """Check a graph that is in no other graph."""
        self._closed(self.nested(graph))

    def function(self, function: onnx.FunctionProto) -> None:
        """Check a local function, whose body sees its own inputs alone."""
        self._make(function.input, "a function input")
        self._make_outputs(function.node)
        self._closed(self._free(function.node, function.output))

    def nested(self, graph: onnx.GraphProto) -> dict[str, _Place]:
        """Return names that the graph takes from outer graphs, each with its first reader."""
        inputs = [value.name for value in graph.input]
        weights = [tensor.name for tensor in graph.initializer]
        weights += [sparse.values.name for sparse in graph.sparse_initializer]
        for name, count in Counter(weights).items():
            if count > 1:
                raise self._error(f"{count} initializers are named {name!r}")
        self._make(inputs, "a graph input")
        self._make(set(weights).difference(inputs), "an initializer")
        self._make_outputs(graph.node)
        return self._free(graph.node, [value.name for value in graph.output])

    def _make_outputs(self, nodes: Iterable[onnx.NodeProto]) -> None:
        names: set[str] = set()
        for node in nodes:
            if node.name in names:
                raise self._error(f"two nodes are named {node.name!r}")
            if node.name:
                names.add(node.name)
            self._make(filter(None, node.output), node)

    def _make(self, names: Iterable[str], maker: _Place) -> None:
        for name in names:
            if name in self._makers:
                makers = f"{_words(self._makers[name])} and {_words(maker)}"
                raise self._error(f"{name!r} is made twice", why=f"by {makers}")
            self._makers[name] = maker

    def _free(
        self, nodes: RepeatedCompositeFieldContainer[onnx.NodeProto], outputs: Iterable[str]
    ) -> dict[str, _Place]:
        """Sort the nodes; return the names that are read here and made elsewhere."""
        reads = [self._reads(node) for node in nodes]
        order = self._order(nodes, reads)
        if order is not None:
            ordered = [nodes[i] for i in order]
            del nodes[:]
            nodes.extend(ordered)
        reads.append(dict.fromkeys(outputs, "the list of outputs"))
        free: dict[str, _Place] = {}
        for read in reads:
            for name, reader in read.items():
                if name not in self._makers:
                    free.setdefault(name, reader)
        return free

    def _reads(self, node: onnx.NodeProto) -> dict[str, _Place]:
        """Return the names that a node or its subgraphs read, each with the innermost reader."""
        reads: dict[str, _Place] = dict.fromkeys(filter(None, node.input), node)
        for inner in protos.subgraphs(node):
            scope = _Scope(f"graph {inner.name!r} of {protos.describe(node)}", self._where)
            reads |= scope.nested(inner)
        return reads

    def _order(
        self, nodes: Sequence[onnx.NodeProto], reads: Sequence[dict[str, _Place]]
    ) -> list[int] | None:
        """Return indices in topological order, stable; None if the nodes are sorted."""
        maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
        sources = [{maker[name] for name in read if name in maker} for read in reads]
        if all(source < i for i, each in enumerate(sources) for source in each):
            return None
        sorter = TopologicalSorter(dict(enumerate(sources)))
        try:
            sorter.prepare()
        except CycleError as error:
            raise self._error("has a cycle", why=_path([nodes[i] for i in error.args[1]])) from None
        ready: list[int] = []
        order: list[int] = []
        while sorter.is_active():
            for i in sorter.get_ready():
                heapq.heappush(ready, i)
            order.append(heapq.heappop(ready))
            sorter.done(order[-1])
        return order

    def _closed(self, free: dict[str, _Place]) -> None:
        for name, reader in free.items():
            candidates = self._makers if len(self._makers) < _NEAR else ()
            near = nearest(name, candidates)
            raise self._error(
                f"{_words(reader)} reads {name!r}, which nothing makes",
                why=f"the nearest name is {near!r}" if near else None,
            )

    def _error(self, what: str, *, why: str | None = None) -> ModelError:
        return ModelError.broken(f"{self._what}: {what}", where=self._where, why=why)


def _path(nodes: Sequence[onnx.NodeProto]) -> str:
    shown = [protos.describe(node) for node in nodes]
    if len(shown) > 8:
        shown[4:-4] = [f"{len(shown) - 8} more"]
    return " -> ".join(shown)


def _words(place: _Place) -> str:
    return place if isinstance(place, str) else protos.describe(place)


_LARGEST = 2**63 - 1


def require_bounded(model: onnx.ModelProto, *, where: str) -> None:
    """Bound the cost of every later stage. A dimension of -1, which some exporters write, becomes
    unknown, as in ONNX Runtime.

    Raises:
        ModelError: the model has too many nodes, a node with too many inputs, no outputs, or an
            invalid declared shape.
    """
    nodes = list(protos.nodes(model))
    count = len(nodes)
    if count > limits.MODEL_NODES.value:
        raise ModelError(
            f"has {count:,} nodes, more than {limits.MODEL_NODES.value:,}",
            where=where,
            remedy=f"split the model; {limits.MODEL_NODES.remedy}",
            code=Code.MODEL_TOO_LARGE,
        )
    most = limits.NODE_INPUTS.value
    for node in nodes:
        if len(node.input) > most:
            raise ModelError(
                f"{protos.describe(node)} has {len(node.input):,} inputs, more than {most:,}",
                where=where,
                remedy=f"split the node; {limits.NODE_INPUTS.remedy}",
                code=Code.MODEL_TOO_LARGE,
            )
    if not model.graph.output:
        raise ModelError("has no outputs", where=where, remedy="export the model with its outputs")
    for value in protos.values(model):
        _require_shape(value, where=where)


def _require_shape(value: onnx.ValueInfoProto, *, where: str) -> None:
    dims = list(protos.dimensions(value.type))
    if len(dims) > limits.TENSOR_RANK:
        what = f"{value.name!r} has {len(dims):,} dimensions, more than {limits.TENSOR_RANK}"
        raise ModelError.broken(what, where=where)
    for dim in dims:
        if dim.dim_value == -1:
            dim.ClearField("dim_value")
    sizes = [dim.dim_value for dim in dims if dim.HasField("dim_value")]
    if any(size < 0 for size in sizes) or math.prod(sizes) > _LARGEST:
        raise ModelError.broken(f"{value.name!r} has the shape {sizes}", where=where)
