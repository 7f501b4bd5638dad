"""External data to be written: tensors move out of a model into a planned file.

Source: spec/onnx-external-data: one file for all, a size threshold, aligned offsets. `basepath` is
never written (ONNX Runtime refuses it, real-eps.md section 15).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from epctx.errors import ManifestError
from epctx.files import paths
from epctx.files.digest import Buffer, Digest
from epctx.graph.serde.ordering import OrderedGraph, order
from epctx.graph.weights import tensors
from epctx.graph.weights.tensors import MappedTensor, Sink, chunks, content_digest

ALIGNMENT: Final = 4096
"""Divisor of all offsets, so that files can be mapped (spec/onnx-external-data)."""
_ZEROS: Final = bytes(ALIGNMENT)


class PlannedFile:
    """A data file to be written: contents at ascending, aligned offsets.

    Attributes:
        location: path relative to the model's folder, with `/`.
        size: bytes so far.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self.size = 0
        self._contents: list[tuple[int, ir.TensorProtocol]] = []

    def append(self, content: ir.TensorProtocol) -> int:
        """Add a content; return its offset."""
        offset = -(-self.size // ALIGNMENT) * ALIGNMENT
        self._contents.append((offset, content))
        self.size = offset + content.nbytes
        return offset

    def chunks(self) -> Iterator[Buffer]:
        """Yield the file's bytes, anew each time; mapped weights are not copied."""
        position = 0
        for offset, content in self._contents:
            yield _ZEROS[: offset - position]
            yield from chunks(content)
            position = offset + content.nbytes


class PlacedTensor(ir.ExternalTensor):
    """A tensor that is written as a reference to a planned file, and still has its content.

    Attributes:
        content: content of the file at `offset`.
        file: the planned file.
    """

    __slots__ = ("content", "file")

    def __init__(self, content: ir.TensorProtocol, file: PlannedFile, offset: int) -> None:
        self.content = content
        self.file = file
        super().__init__(
            file.location,
            offset,
            content.nbytes,
            content.dtype,
            shape=ir.Shape(content.shape.numpy()),
            name=content.name or "",
        )

    def numpy(self) -> npt.NDArray[np.generic]:
        """Return the content's values."""
        return self.content.numpy()

    def __array__(self, dtype: npt.DTypeLike | None = None) -> npt.NDArray[np.generic]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def tobytes(self) -> bytes:
        """Return the content's raw bytes."""
        return self.content.tobytes()

    def tofile(self, file: Sink) -> None:
        """Write the content's raw bytes, piece by piece."""
        for chunk in chunks(self.content):
            file.write(chunk)


T = TypeVar("T")

THRESHOLD: Final = 1024
"""Default of the least bytes of tensors that are moved; onnx has the same default."""
_INFERENCE_READS: Final = 1024
"""Maximum bytes of a tensor that holds a shape or the like: 128 dimensions."""


def place(
    model: ir.Model,
    location: str,
    *,
    size_threshold: int = THRESHOLD,
    keep: Callable[[ir.TensorProtocol], bool] = lambda tensor: False,
) -> PlannedFile | None:
    """Move large initializers of a model into a planned file, to which the model then refers.

    The file is a function of the graph: tensors come in its canonical order. A content that several
    values share is written once. Tensors of strings stay, since they have no external form.

    Args:
        location: the file.
        size_threshold: least bytes of tensors that are moved; 0 for all.
        keep: tells which tensors stay, whatever their size.

    Returns:
        The file; None if no tensor is moved.

    Raises:
        ManifestError: the location is not a relative path inside the folder.
    """
    if reason := paths.fault(location):
        raise ManifestError(
            f"{location!r} cannot be the file of external initializers",
            why=reason,
            remedy="name a file in the output folder",
        )
    file = PlannedFile(paths.normalize(location))
    offsets: dict[object, int] = {}
    moved: set[int] = set()
    for tensor in _initializers(order(model.graph)):
        if tensor.dtype == ir.DataType.STRING or tensor.nbytes < size_threshold or keep(tensor):
            continue
        moved.add(id(tensor))
        if _content(tensor) not in offsets:
            offsets[_content(tensor)] = file.append(tensor)

    def refer(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        return (
            PlacedTensor(tensor, file, offsets[_content(tensor)]) if id(tensor) in moved else tensor
        )

    tensors.replace_all(model, refer)
    return file if moved else None


def place_shared(models: Sequence[ir.Model], location: str) -> PlannedFile | None:
    """Move initializers that several models share into one planned file.

    They are equal to the byte, under any name, and fill at least a page (smaller ones would be
    padded to one). Only tensors of a size that several models have are read. The file is a function
    of the models and their order.

    Returns:
        The file; None if the models share nothing.
    """
    held = [[*_initializers(order(model.graph))] for model in models] if len(models) > 1 else []
    large = [
        [t for t in each if t.dtype != ir.DataType.STRING and t.nbytes >= ALIGNMENT]
        for each in held
    ]
    often = _in_several([{tensor.nbytes for tensor in each} for each in large])
    digests = {
        id(tensor): content_digest(tensor)
        for tensor in itertools.chain.from_iterable(large)
        if tensor.nbytes in often
    }
    common = _in_several([{digests[id(t)] for t in each if id(t) in digests} for each in large])
    file = PlannedFile(location)
    offsets: dict[Digest, int] = {}
    for tensor in itertools.chain.from_iterable(large):
        content = digests.get(id(tensor))
        if content in common and content not in offsets:
            offsets[content] = file.append(tensor)

    def refer(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        content = digests.get(id(tensor))
        return PlacedTensor(tensor, file, offsets[content]) if content in offsets else tensor

    for model in models if common else ():
        tensors.replace_all(model, refer)
    return file if common else None


def _in_several(sets: Iterable[Set[T]]) -> set[T]:
    counted = Counter(itertools.chain.from_iterable(sets))
    return {each for each, count in counted.items() if count > 1}


def inference_may_read(tensor: ir.TensorProtocol) -> bool:
    """Tell whether shape inference may need a tensor's values: a shape, axes, pads, scales, a
    count.

    Inference cannot read external data, and ONNX Runtime then refuses the model ("Cannot parse data
    from external tensors", measured on 1.31.1). So such tensors stay in the model.
    """
    return len(tensor.shape) <= 1 and tensor.nbytes <= _INFERENCE_READS


def _initializers(ordered: OrderedGraph) -> Iterator[ir.TensorProtocol]:
    """Yield initializers of a graph and of its nodes' bodies, in canonical order."""
    for _, value in ordered.initializers():
        if value.const_value is not None:
            yield value.const_value
    for node in ordered.nodes:
        for body in ordered.bodies.get(node, ()):
            yield from _initializers(body)


def _content(tensor: ir.TensorProtocol) -> object:
    """Return a key that is equal for one range of a file, and for one object."""
    if isinstance(tensor, MappedTensor):
        return id(tensor.file), tensor.start, tensor.nbytes
    return id(tensor)
