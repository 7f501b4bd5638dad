"""A model with some of its inner values as outputs, so that an EP gives them away."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

import onnx_ir as ir
from msgspec import Struct

from epctx.files import outputs
from epctx.graph import dataflow, store
from epctx.graph.serde import canonical, data_files
from epctx.graph.serde.ordering import order

_DATA: Final = "weights.data"
_FLOATS: Final = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)


class Layer(Struct, frozen=True, kw_only=True, eq=False):
    """A node whose values can be read.

    Attributes:
        place: in the sequence of all layers, which is a topological order.
        values: those of its outputs that can be read.
        parents: places of the layers that it uses, also through nodes that are none.
    """

    place: int
    node: ir.Node
    values: tuple[str, ...]
    parents: frozenset[int]


class CutModel:
    """An optimized model that is written again and again with other outputs, its weights once.

    Args:
        optimized: the folder that Optimize wrote.
        folder: gets the models; exists.

    Attributes:
        nodes: those of the main graph, in a topological order.
        layers: those whose values can be read.
    """

    def __init__(self, optimized: Path, folder: Path) -> None:
        self._model = store.read(optimized).model
        self._folder = folder
        data = data_files.place(self._model, _DATA, keep=data_files.inference_may_read)
        if data is not None:
            outputs.write(folder / _DATA, data.chunks())
        self._values = {str(v.name): v for node in self._model.graph for v in node.outputs}
        self.nodes = tuple(order(self._model.graph).nodes)
        self.layers = tuple(_layers(self.nodes))

    def write(self, values: Collection[str]) -> Path:
        """The model with these values as outputs, too, those of the model first."""
        graph = self._model.graph
        own = tuple(graph.outputs)
        names = {value.name for value in own}
        path = self._folder / f"cut{len(list(self._folder.glob('cut*')))}.onnx"
        try:
            graph.outputs.extend(self._values[name] for name in values if name not in names)
            outputs.write(path, canonical.chunks(self._model))
        finally:
            del graph.outputs[len(own) :]
        return path


def _layers(nodes: Iterable[ir.Node]) -> Iterator[Layer]:
    made: dict[ir.Node, frozenset[int]] = {}
    count = 0
    for node in nodes:
        used = (*(v for v in node.inputs if v is not None), *dataflow.captured(node))
        producers = (value.producer() for value in used)
        parents = frozenset[int]().union(*(made.get(p, ()) for p in producers if p is not None))
        values = tuple(str(value.name) for value in node.outputs if _readable(value))
        made[node] = parents
        if values:
            yield Layer(place=count, node=node, values=values, parents=parents)
            made[node] = frozenset({count})
            count += 1


def _readable(value: ir.Value) -> bool:
    known = value.dtype in _FLOATS and value.shape is not None
    return bool(value.name) and (value.is_graph_output() or known)
