"""Weights on their way out: data files that are planned, and tensors that refer to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from epctx.files.digest import Buffer
from epctx.graph.weights.mapped import Sink, chunks

ALIGNMENT: Final = 4096
"""Offsets are multiples of it, so that files can be mapped (spec/onnx-external-data)."""
_ZEROS: Final = bytes(ALIGNMENT)


class PlannedFile:
    """A data file to be written: contents at ascending, aligned offsets.

    Attributes:
        location: its path relative to the model's folder, with `/`.
        size: in bytes, so far.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self.size = 0
        self._contents: list[tuple[int, ir.TensorProtocol]] = []

    def append(self, content: ir.TensorProtocol) -> int:
        """Give a content its place; the offset."""
        offset = -(-self.size // ALIGNMENT) * ALIGNMENT
        self._contents.append((offset, content))
        self.size = offset + content.nbytes
        return offset

    def chunks(self) -> Iterator[Buffer]:
        """The file's bytes, anew each time; mapped weights go through without a copy."""
        position = 0
        for offset, content in self._contents:
            yield _ZEROS[: offset - position]
            yield from chunks(content)
            position = offset + content.nbytes


class PlacedTensor(ir.ExternalTensor):
    """A tensor that is written as a reference to a planned file, and still has its content.

    Attributes:
        content: what the file will hold at `offset`.
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
        """The content's values."""
        return self.content.numpy()

    def __array__(self, dtype: npt.DTypeLike | None = None) -> npt.NDArray[np.generic]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def tobytes(self) -> bytes:
        """The content's raw bytes."""
        return self.content.tobytes()

    def tofile(self, file: Sink) -> None:
        """Write the content's raw bytes, piece by piece."""
        for chunk in chunks(self.content):
            file.write(chunk)
