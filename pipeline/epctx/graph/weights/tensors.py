"""Tensors of a model: mapped ones, whose bytes are parts of a file, and replacing them everywhere.

A mapped tensor is read when somebody asks for its bytes, and never copied.
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
    """What a tensor is written to: a binary stream, or `digest.HashingWriter`."""

    def write(self, data: Buffer, /) -> object:
        """Take all of `data`."""
        ...


class MappedTensor(ir.ExternalTensor):
    """A tensor whose bytes are a range of a `DataFile`: immutable, read when asked for.

    To onnx_ir it is an external tensor: its serde writes `location`, `offset` and `length`
    (`location` being relative to `file.folder`), it never reads the bytes. `canonical.serialize`
    writes the bytes themselves.

    Attributes:
        file: where the bytes are.
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
        """Bind a range that was checked: `offset` plus the size of dtype and shape is in `file`."""
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
        """A tensor of the same name, type and shape, whose bytes are in `file` at `offset`."""
        shape = ir.Shape(tensor.shape.numpy())
        return cls(file, offset, tensor.dtype, shape=shape, name=tensor.name or "")

    @property
    def start(self) -> int:
        """Offset of the first byte in `file`."""
        return self._offset or 0

    def view(self) -> memoryview:
        """The raw bytes, little endian and packed as ONNX has them; no copy."""
        return self.file.view(self.start, self.nbytes)

    def chunks(self) -> Iterator[memoryview]:
        """The raw bytes in pieces."""
        return self.file.chunks(self.start, self.nbytes)

    def digest(self) -> Digest:
        """BLAKE3 of the raw bytes; computed once for a range of a file."""
        return self.file.part_digest(self.start, self.nbytes)

    def numpy(self) -> npt.NDArray[np.generic]:
        """The values, read-only: a view of the map, or unpacked where a value is under a byte."""
        if self.dtype.bitwidth < 8:
            packed = np.frombuffer(self.view(), np.uint8)
            return ir.PackedTensor(packed, self.dtype, shape=self.shape).numpy()
        dtype = np.dtype(self.dtype.numpy()).newbyteorder("<")
        return np.frombuffer(self.view(), dtype).reshape(self.shape.numpy())

    def __array__(self, dtype: npt.DTypeLike | None = None) -> npt.NDArray[np.generic]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def tobytes(self) -> bytes:
        """A copy of the raw bytes."""
        return bytes(self.view())

    def tofile(self, file: Sink) -> None:
        """Write the raw bytes, piece by piece."""
        for chunk in self.chunks():
            file.write(chunk)

    def release(self) -> None:
        """Give nothing back: the map belongs to the `DataFile`."""


def chunks(tensor: ir.TensorProtocol) -> Iterator[Buffer]:
    """The raw bytes of any tensor but one of strings, as ONNX's raw_data has them, in pieces."""
    if isinstance(tensor, MappedTensor):
        return tensor.chunks()
    return iter((tensor.tobytes(),))


def content_digest(tensor: ir.TensorProtocol) -> Digest:
    """BLAKE3 of the raw bytes of any tensor (its type and shape not included).

    For strings: of each one's length (8 bytes, little endian) and bytes, in order.
    """
    if isinstance(tensor, MappedTensor):
        return tensor.digest()
    if tensor.dtype == ir.DataType.STRING:
        return of_chunks(b for s in strings(tensor) for b in (len(s).to_bytes(8, "little"), s))
    return of_chunks(chunks(tensor))


def strings(tensor: ir.TensorProtocol) -> list[bytes]:
    """The elements of a tensor of strings, encoded, in order."""
    elements = np.asarray(tensor.numpy(), dtype=object).reshape(-1)
    return [each.encode() if isinstance(each, str) else bytes(each) for each in elements]


Replace = Callable[[ir.TensorProtocol], ir.TensorProtocol]
_Undo = list[Callable[[], None]]


def kind_and_count(value: ir.Value) -> tuple[str, int]:
    """Return the kind of the weights that an initializer holds (float, integer or 4-bit), and how
    many they are. Their data is not read.
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
    """Return how many weights initializers hold, by kind."""
    found: Counter[str] = Counter()
    for value in values:
        if value.const_value is not None:
            kind, count = kind_and_count(value)
            found[kind] += count
    return dict(sorted(found.items()))


def external(
    tensor: ir.TensorProtocol,
    location: str,
    offset: int | None = None,
    length: int | None = None,
    *,
    folder: Path | str = "",
) -> ir.ExternalTensor:
    """A reference to a file, of the same name, type and shape as `tensor`."""
    shape, name = ir.Shape(tensor.shape.numpy()), tensor.name or ""
    return ir.ExternalTensor(
        location, offset, length, tensor.dtype, shape=shape, name=name, base_dir=folder
    )


@contextmanager
def replaced(model: ir.Model, replace: Replace) -> Iterator[None]:
    """Let `replace(tensor)` stand for every tensor of `model`, until the `with` block ends."""
    undo: _Undo = []
    try:
        _replace(model, replace, undo)
        yield
    finally:
        for each in undo:
            each()


def replace_all(model: ir.Model, replace: Replace) -> None:
    """Put `replace(tensor)` in the place of every tensor of `model`, for good."""
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
