"""Weights that passes make: views while the passes work, a file when they are done.

A fold returns numpy views wherever it can: a fill is one element with strides of zero, a
transposition another order of strides. Arrays that must be laid out anew go to files in the scratch
folder. Large arrays are written at once, block by block; smaller ones are collected and written
together. Arrays that are still views at the end are written then. So memory never holds a large
weight as a whole, nor the sum of the weights (design section 7: "streamed to disk, not held in
memory").
"""

from __future__ import annotations

import bisect
import itertools
import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import blake3
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from numpy.lib.array_utils import byte_bounds

from epctx.errors import StorageError
from epctx.files.digest import CHUNK, Digest
from epctx.graph.serde.data_files import ALIGNMENT
from epctx.graph.weights import tensors
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.tensors import MappedTensor

Array = npt.NDArray[Any]
"""An array whose element type is known at run time only."""


def blocks(shape: tuple[int, ...], itemsize: int) -> Iterator[tuple[slice, ...]]:
    """Yield indices of blocks of a shape in C order, each at most `digest.CHUNK` bytes (or one
    element).
    """
    if 0 in shape:
        return
    inner, axis = itemsize, len(shape)
    while axis and inner * shape[axis - 1] <= CHUNK:
        axis -= 1
        inner *= shape[axis]
    rest = (slice(None),) * (len(shape) - axis)
    if not axis:
        yield rest
        return
    step = max(CHUNK // inner, 1)
    for leading in itertools.product(*(range(size) for size in shape[: axis - 1])):
        fixed = tuple(slice(index, index + 1) for index in leading)
        for start in range(0, shape[axis - 1], step):
            yield (*fixed, slice(start, min(start + step, shape[axis - 1])), *rest)


def content_chunks(array: Array) -> Iterator[memoryview]:
    """Yield the bytes of an array of any strides, in C order, in pieces."""
    for index in blocks(array.shape, array.itemsize):
        yield np.ascontiguousarray(array[index]).reshape(-1).view(np.uint8).data


def is_fill(array: Array) -> bool:
    """Tell whether all elements are one element in memory."""
    return array.size > 0 and all(
        not stride or size == 1 for stride, size in zip(array.strides, array.shape, strict=True)
    )


def held_bytes(array: Array) -> int:
    """Return the bytes of memory that an array spans: few for a fill, whatever its size."""
    low, high = byte_bounds(array)
    return min(high - low, content_bytes(array))


def content_bytes(array: Array) -> int:
    """Return the bytes of an array's written content, whatever its strides."""
    return math.prod(array.shape) * array.itemsize


def address_of(array: Array) -> int:
    """Return the memory address of the first element."""
    address: int = array.__array_interface__["data"][0]
    return address


R = TypeVar("R")

SMALL = 1 << 16
"""Least bytes (64 KiB) of tensors that leave memory."""

HELD = 1 << 26
"""Bytes (64 MiB) of larger tensors that stay in memory until they are written together."""

MOST = 8 << 30
"""Bytes (8 GiB) of weights that passes may make, in addition to `TIMES` the bytes of the source."""

TIMES = 8
"""Factor of the source's bytes: a weight may go through several nodes that lay it out anew."""

FOLDED = "folded.data"
"""Name of the file with the weights that passes made."""


class _Writer:
    """A new file of weights, with the digests of the ranges written to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream = path.open("xb", buffering=0)
        self._whole = blake3.blake3()
        self.parts: dict[tuple[int, int], Digest] = {}
        self._size = 0

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def write(self, pieces: Iterable[memoryview]) -> int:
        """Append a tensor at an aligned offset; return the offset."""
        self._put(bytes(-self._size % ALIGNMENT))
        start, hasher = self._size, blake3.blake3()
        for piece in pieces:
            hasher.update(piece)
            self._put(piece)
        self.parts[start, self._size - start] = Digest("blake3", hasher.hexdigest())
        return start

    def map(self) -> DataFile:
        """Return the written file, mapped."""
        self._stream.close()
        whole = Digest("blake3", self._whole.hexdigest())
        return DataFile.open(self._path, whole=whole, parts=self.parts)

    def _put(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[self._stream.write(view) :]
        self._whole.update(data)
        self._size += len(data)


class _Held(ir.LazyTensor):
    """A tensor in memory that moves to a file when memory is needed."""

    __slots__ = ("backing",)

    def __init__(self, backing: ir.Tensor[Array]) -> None:
        self.backing: ir.TensorProtocol = backing
        shape = ir.Shape(backing.shape.numpy())
        super().__init__(lambda: self.backing, backing.dtype, shape, name=backing.name)

    def unwrapped(self) -> ir.TensorProtocol:
        """Return its current tensor, under its current name."""
        self.backing.name = self.name
        return self.backing


class Scratch:
    """Weights that passes make of one model, in one folder.

    Args:
        folder: existing folder, which gets the files `folded.data` and `laid-out-<n>.data`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[DataFile, Iterable[tuple[int, int]]] = {}
        self._bases: list[int] = []
        self._mapped: list[DataFile] = []
        self._recognized: set[DataFile] = set()
        self._held: list[weakref.ref[_Held]] = []
        self._budget = HELD
        self._remaining = MOST

    @property
    def is_full(self) -> bool:
        """True if passes may make no more weights; without a limit, a small model may make
        terabytes.
        """
        return self._remaining < 0

    def lay_out(self, shape: tuple[int, ...], pieces: Iterable[memoryview], like: Array) -> Array:
        """Write an array of `shape` and the type of `like` to a file, piece by piece; map it.

        Raises:
            StorageError: the disk is full.
        """
        file, _ = self._write(lambda writer: writer.write(pieces))
        self._remaining -= file.size
        return np.frombuffer(file.view(), like.dtype).reshape(shape)

    def know(self, file: DataFile) -> None:
        """Let `tensor` recognize views into the map of `file`."""
        if not file.size or file in self._recognized:
            return
        self._recognized.add(file)
        self._remaining += 0 if file in self._files else TIMES * file.size
        base = address_of(np.frombuffer(file.view(), np.uint8))
        place = bisect.bisect(self._bases, base)
        self._bases.insert(place, base)
        self._mapped.insert(place, file)

    def tensor(self, array: Array, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
        """Return an array as a tensor, mapped if it is a range of a known file.

        So a reshaped or split weight of a source stays a reference to the source. Small arrays are
        copied, so that they keep no larger array alive.

        Raises:
            StorageError: the disk is full.
        """
        shape = ir.Shape(array.shape)
        if array.nbytes < SMALL:
            return ir.Tensor(np.array(array, order="C"), dtype, shape=shape, name=name)
        span = self._range(array)
        if span is not None:
            file, offset = span
            return MappedTensor(file, offset, dtype, shape=shape, name=name)
        self._remaining -= array.nbytes
        tensor = ir.Tensor(array, dtype, shape=shape, name=name)
        low, high = byte_bounds(array)
        if high - low < SMALL or self._file_at(low, high - low) is not None:
            return tensor
        held = _Held(tensor)
        self._held.append(weakref.ref(held))
        self._budget -= high - low
        if self._budget < 0:
            self._write_held()
        return held

    def write_out(self, model: ir.Model) -> None:
        """Write tensors that are views or in memory to `folded.data`; delete unused files.

        A file that is used only in part is written anew, so that no unused bytes stay. The scratch
        forgets all files, since Windows deletes no file whose map is alive.

        Raises:
            StorageError: the disk is full.
        """
        tensors.replace_all(model, lambda t: t.unwrapped() if isinstance(t, _Held) else t)
        pending: dict[int, ir.TensorProtocol] = {}
        used: defaultdict[DataFile, dict[int, MappedTensor]] = defaultdict(dict)

        def note(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
            if isinstance(tensor, MappedTensor):
                used[tensor.file][id(tensor)] = tensor
            elif not _stays(tensor):
                pending[id(tensor)] = tensor
            return tensor

        tensors.replace_all(model, note)
        dead = self._dead(used, pending)
        self._put(model, pending)
        for each in (pending, used, self._files, self._mapped, self._bases, self._recognized):
            each.clear()
        for path in dead:
            with suppress(OSError):  # Windows: a view is alive; the folder is removed later
                path.unlink()

    def _dead(
        self,
        used: Mapping[DataFile, Mapping[int, MappedTensor]],
        pending: dict[int, ir.TensorProtocol],
    ) -> list[Path]:
        """Return files to delete; their tensors that are in use are added to `pending`."""
        dead = []
        for file, parts in self._files.items():
            tensors_of = used.get(file, {})
            if _wasted(parts, ((t.start, t.start + t.nbytes) for t in tensors_of.values())):
                pending |= tensors_of
                dead.append(file.path)
        return dead

    def _put(self, model: ir.Model, pending: Mapping[int, ir.TensorProtocol]) -> None:
        """Write the pending tensors of `model` to `folded.data`, and refer to them."""
        if not pending:
            return
        file, offsets = self._write(lambda w: _write_all(w, pending.values()), FOLDED)

        def mapped(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
            if id(tensor) not in pending:
                return tensor
            return MappedTensor.like(tensor, file, offsets[id(tensor)])

        tensors.replace_all(model, mapped)

    def _write_held(self) -> None:
        """Write tensors that are in memory and still in use."""
        alive = [held for ref in self._held if (held := ref()) is not None]
        self._held.clear()
        self._budget = HELD
        backings = [held.backing for held in alive]
        if backings:
            file, offsets = self._write(lambda writer: _write_all(writer, backings))
            for held, backing in zip(alive, backings, strict=True):
                held.backing = MappedTensor.like(backing, file, offsets[id(backing)])

    def _write(self, write: Callable[[_Writer], R], name: str = "") -> tuple[DataFile, R]:
        """Make a new file, map it, and remember it."""
        path = self._folder / (name or f"laid-out-{len(self._files)}.data")
        with (
            StorageError.if_refused(
                "the weights that the optimization makes cannot be written",
                file=str(path),
                remedy="free some space; `optimize: none` makes none",
            ),
            _Writer(path) as writer,
        ):
            result = write(writer)
            file = writer.map()
        self._files[file] = writer.parts
        self.know(file)
        return file, result

    def _range(self, array: Array) -> tuple[DataFile, int] | None:
        """Return the file and offset of an array's bytes; None if no known file holds them."""
        return self._file_at(address_of(array), array.nbytes) if array.flags.c_contiguous else None

    def _file_at(self, address: int, length: int) -> tuple[DataFile, int] | None:
        place = bisect.bisect(self._bases, address) - 1
        if place < 0:
            return None
        file, offset = self._mapped[place], address - self._bases[place]
        return (file, offset) if offset + length <= file.size else None


def _wasted(parts: Iterable[tuple[int, int]], used: Iterable[tuple[int, int]]) -> bool:
    """Tell whether one of `parts` (offset, length) overlaps no range (start, stop) in `used`."""
    ranges = sorted(used)
    return not all(
        any(start < offset + length and offset < stop for start, stop in ranges)
        for offset, length in parts
    )


def _write_all(writer: _Writer, pending: Iterable[ir.TensorProtocol]) -> dict[int, int]:
    """Write tensors, equal fills once; return offsets by the tensors' identity."""
    offsets: dict[int, int] = {}
    fills: dict[tuple[object, ...], int] = {}
    for tensor in pending:
        if tensor.dtype.bitwidth < 8:
            offsets[id(tensor)] = writer.write((memoryview(tensor.tobytes()),))
            continue
        array = tensor.numpy()
        fill = (array.dtype, array.size, array.flat[0].tobytes()) if is_fill(array) else None
        if fill not in fills:
            offset = writer.write(content_chunks(array))
            if fill is not None:
                fills[fill] = offset
        offsets[id(tensor)] = fills[fill] if fill is not None else offset
    return offsets


def _stays(tensor: ir.TensorProtocol) -> bool:
    return (
        isinstance(tensor, ir.ExternalTensor)
        or tensor.dtype == ir.DataType.STRING
        or tensor.nbytes < SMALL
    )
