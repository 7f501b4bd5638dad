"""Where a model's external data is, without onnx: what a cold build needs to know of its sources.

The file is read field by field, and what is long is passed over; no more of it is in memory than a
buffer. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from epctx import limits
from epctx.errors import ModelError
from epctx.files.regular import open_regular

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DEEPEST: Final = 100
"""Nesting that protobuf's own parser accepts."""
_LONGEST: Final = 1 << 16
"""Bytes of a location: no file system takes more."""
_INNER: Final[Mapping[str, Mapping[int, str]]] = {
    "ModelProto": {7: "GraphProto", 25: "FunctionProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
}
"""By message type its fields that may hold tensors, somewhere below."""
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
_EXTERNAL: Final = 1
_KEY, _VALUE = 1, 2


class _Malformed(ValueError):
    """The bytes are no protobuf message, or more than is read."""


def of(model: Path) -> tuple[str, ...]:
    """Return the data files that a model refers to, as it writes them, sorted.

    Raises:
        ModelError: it is missing, or no model.
    """
    try:
        _, descriptor = open_regular(model, where=str(model))
        with os.fdopen(descriptor, "rb") as stream:
            reader = _Reader(stream)
            reader.message("ModelProto", os.fstat(descriptor).st_size, _DEEPEST)
    except (OSError, ModelError, _Malformed) as error:
        from epctx.graph.serde import skeleton

        skeleton.read(model)  # it says what the file is instead
        raise ModelError(
            "cannot be read", file=str(model), why=str(error), remedy="export the model again"
        ) from error
    return tuple(sorted(reader.found))


class _Reader:
    """Reads a model, message by message, and notes where its tensors' data is."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._left = limits.MODEL_FIELDS.value
        self.found: set[str] = set()

    def message(self, kind: str, end: int, depth: int) -> None:
        """Read the message of that type that ends at the offset `end`."""
        if not depth:
            raise _Malformed(f"nests more than {_DEEPEST} messages")
        inner = _INNER[kind]
        for number, length, _ in self._fields(end):
            below = inner.get(number)
            if below is not None and length is not None:
                stop = self._stream.tell() + length
                if below == "TensorProto":
                    self._tensor(stop)
                else:
                    self.message(below, stop, depth - 1)

    def _tensor(self, end: int) -> None:
        location: str | None = None
        external = False
        for number, length, value in self._fields(end):
            if number == _DATA_LOCATION and length is None:
                external = value == _EXTERNAL
            elif number == _EXTERNAL_DATA and length is not None and location is None:
                location = self._location(self._stream.tell() + length)
        if external:
            self.found.add(location or "")

    def _location(self, end: int) -> str | None:
        """Read an entry of a tensor's external data: its value, if that is the location."""
        text = {_KEY: b"", _VALUE: b""}
        for number, length, _ in self._fields(end):
            if length is not None and length > _LONGEST:
                raise _Malformed(f"names a file in {length} bytes")
            if number in text and length is not None:
                text[number] = self._stream.read(length)
        return text[_VALUE].decode("utf-8", "replace") if text[_KEY] == b"location" else None

    def _fields(self, end: int) -> Iterator[tuple[int, int | None, int]]:
        """List number, length of payload if it has one, and value if it is a varint, of each field
        up to `end`; the stream is at the payload, and goes on behind it.
        """
        stream = self._stream
        while (position := stream.tell()) < end:
            self._left -= 1
            if self._left < 0:
                raise _Malformed(f"has more than {limits.MODEL_FIELDS} fields")
            tag = self._varint()
            number, wire = tag >> 3, tag & 7
            length: int | None = None
            value = 0
            if wire == _BYTES:
                length = self._varint()
                stop = stream.tell() + length
            elif wire == _VARINT:
                value = self._varint()
                stop = stream.tell()
            elif wire in (_FIXED32, _FIXED64):
                stop = stream.tell() + (4 if wire == _FIXED32 else 8)
            else:
                raise _Malformed(f"has wire type {wire} at byte {position}")
            if number == 0 or stop > end:
                raise _Malformed(f"is cut short, or damaged at byte {position}")
            yield number, length, value
            stream.seek(stop)

    def _varint(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._stream.read(1)
            if not byte:
                break
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return value
            shift += 7
        raise _Malformed("is cut short, or damaged")
