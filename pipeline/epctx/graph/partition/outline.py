"""The outline of a model, taken before its partitions are replaced, told by who took what after."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

from epctx.graph.dataflow import Dataflow
from epctx.graph.model import Outline, Partition
from epctx.graph.serde import protos


class Outlined:
    """The nodes of a model as they were when this was made: compiling changes the model."""

    def __init__(self, model: ir.Model, name_of: Callable[[ir.Node], str]) -> None:
        """`name_of`: how the report calls a node."""
        flow = Dataflow(model)
        op_types: dict[str, int] = {}
        self._places = {node: place for place, node in enumerate(flow.nodes)}
        self._names = tuple(map(name_of, flow.nodes))
        ops = map(protos.op, flow.nodes)
        self._ops = tuple(op_types.setdefault(op, len(op_types)) for op in ops)
        self._op_types = tuple(op_types)
        self._predecessors = tuple(map(tuple, flow.predecessors))
        self._named = dict(zip(self._names, range(len(self._names)), strict=True))
        self._name_of = name_of

    def owned(self, partitions: Iterable[Partition]) -> Outline:
        """The outline, with the partitions that the nodes are in now.

        What an EP left may have become another object on its way to the next EP: it is the node of
        that name. A node that an EP has made itself was never the model's, and is in no outline.
        """
        owners = [-1] * len(self._names)
        for number, partition in enumerate(partitions):
            for node in partition.nodes:
                place = self._places.get(node)
                if place is None:
                    place = self._named.get(self._name_of(node))
                if place is not None:
                    owners[place] = number
        return Outline(
            names=self._names,
            op_types=self._op_types,
            ops=self._ops,
            owners=tuple(owners),
            predecessors=self._predecessors,
        )
