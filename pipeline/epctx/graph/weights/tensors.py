"""Tensors of a model: mapped tensors, whose bytes are part of a file, and their replacement.

A mapped tensor is read when a caller needs its bytes, and is never copied.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from epctx.files.digest import Buffer, Digest, of_chunks
from epctx.graph.weights.data_file import DataFile


class Sink(Protocol):
    """Target of a tensor's bytes: a binary stream, or `digest.HashingWriter`."""

    def write(self, data: Buffer, /) -> object:
        """Write all of `data`."""
        ...


class MappedTensor(ir.ExternalTensor):
    """A tensor whose bytes are a range of a `DataFile`: immutable, read when asked for.

    To onnx_ir it is an external tensor. onnx_ir's serde writes `location` (relative to
    `file.folder`), `offset` and `length`, and never reads the bytes. `canonical.serialize` writes
    the bytes themselves.

    Attributes:
        file: the file with the bytes.
    """

    __slots__ = ("file",)

    def __init__(
        self,
        file: DataFile,
        offset: int,
        dtype: ir.DataType,
        *,
        shape: ir.Shape,
        name: str,
    ) -> None:
        """Bind a checked range: `offset` plus the size of dtype and shape is inside `file`."""
        self.file = file
        super().__init__(
            file.location,
            offset,
            None,
            dtype,
            shape=shape,
            name=name,
            base_dir=str(file.folder),
        )
        self._length = self.nbytes

    @classmethod
    def like(cls, tensor: ir.TensorProtocol, file: DataFile, offset: int) -> MappedTensor:
        """Return a tensor of the same name, type and shape, whose bytes are in `file` at
        `offset`.
        """
        shape = ir.Shape(tensor.shape.numpy())
        return cls(file, offset, tensor.dtype, shape=shape, name=tensor.name or "")

    @property
    def start(self) -> int:
        """Offset of the first byte in `file`."""
        return self._offset or 0

    def view(self) -> memoryview:
        """Return the raw bytes, little endian and packed as ONNX has them; no copy."""
        return self.file.view(self.start, self.nbytes)

    def chunks(self) -> Iterator[memoryview]:
        """Yield the raw bytes in pieces."""
        return self.file.chunks(self.start, self.nbytes)

    def digest(self) -> Digest:
        """Return BLAKE3 of the raw bytes; computed once for a range of a file."""
        return self.file.part_digest(self.start, self.nbytes)

    def numpy(self) -> npt.NDArray[np.generic]:
        """Return the values, read-only: a view of the map, or unpacked if a value is under
        a byte.
        """
        if self.dtype.bitwidth < 8:
            packed = np.frombuffer(self.view(), np.uint8)
            return ir.PackedTensor(packed, self.dtype, shape=self.shape).numpy()
        dtype = np.dtype(self.dtype.numpy()).newbyteorder("<")
        return np.frombuffer(self.view(), dtype).reshape(self.shape.numpy())

    def __array__(self, dtype: npt.DTypeLike | None = None) -> npt.NDArray[np.generic]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def tobytes(self) -> bytes:
        """Return a copy of the raw bytes."""
        return bytes(self.view())

    def tofile(self, file: Sink) -> None:
        """Write the raw bytes, piece by piece."""
        for chunk in self.chunks():
            file.write(chunk)

    def release(self) -> None:
        """Do nothing: the map belongs to the `DataFile`."""


def chunks(tensor: ir.TensorProtocol) -> Iterator[Buffer]:
    """Return the raw bytes, as in ONNX's raw_data, in pieces; not for strings."""
    if isinstance(tensor, MappedTensor):
        return tensor.chunks()
    return iter((tensor.tobytes(),))


def content_digest(tensor: ir.TensorProtocol) -> Digest:
    """Return BLAKE3 of the raw bytes of any tensor, without type and shape.

    For strings it covers each length (8 bytes, little endian) and the bytes, in order.
    """
    if isinstance(tensor, MappedTensor):
        return tensor.digest()
    if tensor.dtype == ir.DataType.STRING:
        return of_chunks(b for s in strings(tensor) for b in (len(s).to_bytes(8, "little"), s))
    return of_chunks(chunks(tensor))


def strings(tensor: ir.TensorProtocol) -> list[bytes]:
    """Return the elements of a tensor of strings, encoded, in order."""
    elements = np.asarray(tensor.numpy(), dtype=object).reshape(-1)
    return [each.encode() if isinstance(each, str) else bytes(each) for each in elements]


Replace = Callable[[ir.TensorProtocol], ir.TensorProtocol]
_Undo = list[Callable[[], None]]


def kind_and_count(value: ir.Value) -> tuple[str, int]:
    """Return the kind (float, integer or 4-bit) and the number of an initializer's weights. Their
    data is not read.
    """
    assert value.const_value is not None
    count, dtype = value.const_value.size, value.const_value.dtype
    users = [use.node for use in value.uses()]
    if any(node.op_type == "MatMulNBits" for node in users) and dtype == ir.DataType.UINT8:
        return "4-bit", 2 * count
    if dtype == ir.DataType.STRING:  # they have no width, and no EP that was measured takes them
        return "integer", count
    if dtype.bitwidth <= 4:
        return "4-bit", count
    return ("integer" if dtype.is_integer() else "float"), count


def counts_by_kind(values: Iterable[ir.Value]) -> dict[str, int]:
    """Return the number of weights that initializers hold, by kind."""
    counts: Counter[str] = Counter()
    for value in values:
        if value.const_value is not None:
            kind, count = kind_and_count(value)
            counts[kind] += count
    return dict(sorted(counts.items()))


def external(
    tensor: ir.TensorProtocol,
    location: str,
    offset: int | None = None,
    length: int | None = None,
    *,
    folder: Path | str = "",
) -> ir.ExternalTensor:
    """Return a reference to a file, of the same name, type and shape as `tensor`."""
    shape, name = ir.Shape(tensor.shape.numpy()), tensor.name or ""
    return ir.ExternalTensor(
        location, offset, length, tensor.dtype, shape=shape, name=name, base_dir=folder
    )


@contextmanager
def replaced(model: ir.Model, replace: Replace) -> Iterator[None]:
    """Replace every tensor of `model` by `replace(tensor)` until the `with` block ends."""
    undo: _Undo = []
    try:
        _replace(model, replace, undo)
        yield
    finally:
        for each in undo:
            each()


def replace_all(model: ir.Model, replace: Replace) -> None:
    """Replace every tensor of `model` by `replace(tensor)`."""
    _replace(model, replace, [])


def _replace(model: ir.Model, replace: Replace, undo: _Undo) -> None:
    for graph in model.graphs():
        for value in graph.initializers.values():
            _in_value(value, replace, undo)
    bodies = [model.graph, *(function.graph for function in model.functions.values())]
    for node in itertools.chain.from_iterable(body.all_nodes() for body in bodies):
        for attribute in tuple(node.attributes.values()):
            _in_attribute(node, attribute, replace, undo)


def _in_value(value: ir.Value, replace: Replace, undo: _Undo) -> None:
    tensor = value.const_value
    if tensor is None or (substitute := replace(tensor)) is tensor:
        return
    value.const_value = substitute
    undo.append(lambda: setattr(value, "const_value", tensor))


def _in_attribute(node: ir.Node, attribute: ir.Attr, replace: Replace, undo: _Undo) -> None:
    if attribute.is_ref():
        return
    name, substitute = attribute.name, attribute
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        if (other := replace(tensor)) is not tensor:
            substitute = ir.AttrTensor(name, other)
    elif attribute.type == ir.AttributeType.TENSORS:
        substitute = ir.AttrTensors(name, [replace(each) for each in attribute.as_tensors()])
    if substitute is not attribute:
        node.attributes[name] = substitute
        undo.append(lambda: node.attributes.__setitem__(name, attribute))
