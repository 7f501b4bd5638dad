"""The model as a generating session gets it: a file with a fixed relative name, weights beside it.

The string of the model's path is hashed into node names, graph names and bytes, and so are names,
producer and documentation of the model (real-eps.md section 1). So the file has a name that only
the manifest's model name and prefix decide, and the model is stripped of all that is no graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Final

import onnx_ir as ir
from msgspec import Struct, field

from epctx.errors import CompileError, ModelError, StorageError
from epctx.files.digest import Digest
from epctx.graph.dataflow import captured, subgraphs
from epctx.graph.serde import canonical
from epctx.graph.serde.data_files import ALIGNMENT
from epctx.graph.weights import tensors
from epctx.graph.weights.tensors import MappedTensor, chunks, content_digest

_INLINE: Final = 1024
"""Bytes of a tensor up to which it stays in the model: shapes and scalars, which ONNX Runtime
wants at hand for shape inference."""

Place = tuple[str, int]
"""Where a tensor's content was written: a file of the folder, and the offset in it."""


class Staging(Struct, kw_only=True, eq=False):
    """Models written into one folder; content that several of them share is written once.

    Attributes:
        folder: is the current folder of the process when the models are compiled.
        inside: weights stay in the model, which then has at most 2 GB.
    """

    folder: Path
    inside: bool = False
    _places: dict[Digest, Place] = field(default_factory=dict)

    def write(self, model: ir.Model, stem: str) -> str:
        """Write `model`, which changes, as `<stem>.onnx`; return that name.

        Raises:
            ModelError: without its weights it is larger than protobuf allows.
            StorageError: the disk refuses.
        """
        sink_captured_initializers(model)
        with StorageError.if_refused(
            f"cannot write {stem}.onnx for the execution provider",
            file=str(self.folder),
            remedy="free space in the folder for temporary files, or set TMPDIR to another",
        ):
            if not self.inside:
                with (self.folder / f"{stem}.weights").open("wb", buffering=0) as stream:
                    for value, tensor in _large(model):
                        value.const_value = self._externalize(tensor, stream, f"{stem}.weights")
            write(model, self.folder / f"{stem}.onnx")
        return f"{stem}.onnx"

    def _externalize(
        self, tensor: ir.TensorProtocol, stream: FileIO, location: str
    ) -> ir.ExternalTensor:
        content = content_digest(tensor)
        place = self._places.get(content)
        if place is None:
            place = self._places[content] = (location, _append(stream, tensor))
        return tensors.external(tensor, *place, tensor.nbytes, folder=self.folder)


def write(model: ir.Model, path: Path) -> None:
    """Write a model canonically, and without what is no part of the graph.

    So what an EP makes of it depends on nothing but what is in the graph's digest.

    Raises:
        ModelError: it is larger than protobuf allows.
        OSError: the disk refuses.
    """
    model.metadata_props.clear()
    model.domain = model.model_version = None
    model.graph.name = "graph"
    try:
        pieces = canonical.chunks(model)
    except CompileError as error:
        raise ModelError(
            error.what,
            why="as the execution provider must get it",
            remedy="with `optimize: basic`, constants in nodes become initializers, which may be "
            "larger; where sharing needs the weights inside the model, do not share",
        ) from error
    with path.open("wb") as stream:
        for piece in pieces:
            stream.write(piece)


def sink_captured_initializers(model: ir.Model) -> None:
    """Give the bodies of control flow the main graph's initializers that they use, as their own.

    QNN (2.7.0) refuses a body that uses one from outside, and ONNX Runtime (1.31.1) forgets to
    write one that only bodies use: both end in INVALID_GRAPH.
    """
    for node in model.graph:
        for value in [v for v in captured(node) if v.is_initializer() and v.graph is model.graph]:
            for body in subgraphs(node):
                _sink(value, body)


def _sink(value: ir.Value, body: ir.Graph) -> None:
    own: ir.Value | None = None
    for node in body:
        for place, used in enumerate(node.inputs):
            if used is value:
                if own is None:
                    own = _copy(value, body)
                node.replace_input_with(place, own)


def _copy(value: ir.Value, body: ir.Graph) -> ir.Value:
    name = f"{value.name}/{body.name}"
    taken = set(body.initializers) | {v.name for node in body for v in node.outputs}
    while name in taken:
        name += "_"
    own = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
    body.initializers.add(own)
    return own


def _large(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if (
                tensor is not None
                and tensor.dtype != ir.DataType.STRING
                and tensor.nbytes > _INLINE
            ):
                yield value, tensor


def _append(stream: FileIO, tensor: ir.TensorProtocol) -> int:
    offset = -(-stream.tell() // ALIGNMENT) * ALIGNMENT
    stream.seek(offset)
    if isinstance(tensor, MappedTensor):
        tensor.file.copy(stream, tensor.start, tensor.nbytes)
        return offset
    for chunk in chunks(tensor):
        rest = memoryview(chunk)
        while rest:
            rest = rest[stream.write(rest) :]
    return offset
