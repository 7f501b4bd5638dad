"""Outline of a model for reports: its nodes, their owners, and their places in the source.

Exporters write the line of code that a node comes from into the node's metadata. torch (2.13)
writes the trace of the module's code, and the scopes of its modules, which identify a layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import onnx
import onnx_ir as ir

from epctx.graph.dataflow import Dataflow
from epctx.graph.model import Outline, Partition
from epctx.graph.serde import protos, reader


class Outlined:
    """Nodes of a model before the compile, which changes the model."""

    def __init__(self, model: ir.Model, name_of: Callable[[ir.Node], str]) -> None:
        """Take the nodes of a model; `name_of` gives their names in the report."""
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
        """Return the outline with the current partitions of the nodes.

        A node that an EP left may have become another object on its way to the next EP; it is found
        by name. A node that an EP made does not belong to the model, and is left out.
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


_TRACE: Final = "pkg.torch.onnx.stack_trace"
_SCOPES: Final = "pkg.torch.onnx.name_scopes"
_LINE: Final = re.compile(r'File "(?P<path>[^"\n]{1,300})", line (?P<line>\d+)')
_SCOPE: Final = re.compile(r"'([^']{0,200})'")
_PACKAGES: Final = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")


def node_locations(path: Path, names: Collection[str]) -> Mapping[str, str]:
    """Return the places of nodes with these names in the model at `path`, as far as it has them.

    A node that a pass made from another has the other's name, followed by `/` and its own operator.
    A node without a name is named by its outputs.

    Raises:
        ModelError: there is no model at `path`.
    """
    file = reader.open_model(path)
    model, _ = reader.parse(file, threshold=0, location="-", where=path.name)
    places = {
        node.name or f"-> {', '.join(filter(None, node.output))}": place
        for place, node in enumerate(model.graph.node)
    }
    origins = {name: next(filter(places.__contains__, _made_of(name)), None) for name in names}
    return {
        name: _words(places[origin], model.graph.node[places[origin]])
        for name, origin in origins.items()
        if origin is not None
    }


def _made_of(name: str) -> Iterator[str]:
    """Yield the name, then its part before the last slash, and so on."""
    while name:
        yield name
        name = name.rpartition("/")[0]


def _words(place: int, node: onnx.NodeProto) -> str:
    metadata = {entry.key: entry.value for entry in node.metadata_props}
    lines = list(_LINE.finditer(metadata.get(_TRACE, "")))
    scopes = _SCOPE.findall(metadata.get(_SCOPES, ""))
    words = f"node {place}"
    if any(scopes):
        words += f", {'/'.join(filter(None, scopes[-2:]))}"
    if lines:
        words += f", {_PACKAGES.sub('', lines[-1]['path'])}:{lines[-1]['line']}"
    return words
