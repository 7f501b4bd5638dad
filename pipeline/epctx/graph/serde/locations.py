"""Locations of a model's external data, read without onnx: a cold build needs no more of its
sources.

The file is read field by field; fields that are long, or cannot hold a location, are skipped. Field
numbers are those of onnx.proto.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from epctx import limits
from epctx.files.regular import open_regular

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DEEPEST: Final = 100
"""Maximum nesting that protobuf's own parser accepts."""
_LONGEST: Final = 4096
"""Maximum bytes of a location: no file system takes more."""
_MOST: Final = 1 << 16
"""Maximum number of files that a model can refer to."""
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
"""Fields, by message type, that may hold tensors at any depth."""
_TYPED: Final = {4: 5, 5: 6, 9: 10, 10: 11, 11: 22, 12: 23}
"""Number of the field that holds an attribute's value, by the attribute's type."""
_ATTRIBUTE_TYPE, _EXTERNAL_DATA, _DATA_LOCATION = 20, 13, 14
_EXTERNAL: Final = 1
_LOCATION: Final = b"location"
_KEY, _VALUE = 1, 2
_SMALL: Final = 1 << 16
"""Maximum bytes of a message that is searched as a whole before it is walked."""


class _Malformed(ValueError):
    """Bytes that are not a protobuf message, or exceed a limit."""


def of(model: Path) -> tuple[str, ...]:
    """Return the data files that a model refers to, as it writes them, sorted.

    Raises:
        ModelError: the file is missing, or is not a model.
    """
    try:
        _, descriptor = open_regular(model, where=str(model))
        with os.fdopen(descriptor, "rb") as stream:
            walk = _Reader(stream)
            walk.message("ModelProto", os.fstat(descriptor).st_size, _DEEPEST)
    except (OSError, _Malformed) as error:
        from epctx.graph.serde import reader

        raise reader.not_onnx(reader.open_model(model), str(error), str(model)) from error
    return tuple(sorted(walk.locations))


class _Reader:
    """Reads a model, message by message, and notes the locations of its tensors' data."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._remaining = limits.MODEL_FIELDS.value
        self.locations: set[str] = set()

    def message(self, kind: str, end: int, depth: int) -> None:
        """Read the message of that type that ends at the offset `end`."""
        if not depth:
            raise _Malformed(f"nests more than {_DEEPEST} messages")
        inner = _INNER[kind]
        fields: list[tuple[int, int, int]] = []
        attribute = 0
        for number, length, value in self._fields(end):
            if number == _ATTRIBUTE_TYPE and length is None:
                attribute = value
            elif number in inner and length is not None and self._may_refer(length):
                start = self._stream.tell()
                if kind == "AttributeProto":  # its type may come later
                    fields.append((number, start, length))
                else:
                    self._below(inner[number], start + length, depth)
        for number, start, length in fields:
            if _TYPED.get(attribute) == number:
                self._stream.seek(start)
                self._below(inner[number], start + length, depth)

    def _below(self, kind: str, end: int, depth: int) -> None:
        if kind == "TensorProto":
            self._tensor(end)
        else:
            self.message(kind, end, depth - 1)

    def _may_refer(self, length: int) -> bool:
        """Tell whether the next bytes may hold a location; most nodes do not."""
        if length > _SMALL:
            return True
        start = self._stream.tell()
        content = self._stream.read(length)
        self._stream.seek(start)
        return _LOCATION in content

    def _tensor(self, end: int) -> None:
        location: str | None = None
        external = False
        for number, length, value in self._fields(end):
            if number == _DATA_LOCATION and length is None and value in (0, _EXTERNAL):
                external = value == _EXTERNAL
            elif number == _EXTERNAL_DATA and length is not None and location is None:
                location = self._location(self._stream.tell() + length)
        if external:
            self.locations.add(location or "")
            if len(self.locations) > _MOST:
                raise _Malformed(f"refers to more than {_MOST} files")

    def _location(self, end: int) -> str | None:
        """Read an entry of a tensor's external data; return the location, if it is one."""
        text = {_KEY: b"", _VALUE: b""}
        for number, length, _ in self._fields(end):
            if length is not None and length > _LONGEST:
                raise _Malformed(f"names a file in {length} bytes")
            if number in text and length is not None:
                text[number] = self._stream.read(length)
        return text[_VALUE].decode("utf-8", "replace") if text[_KEY] == _LOCATION else None

    def _fields(self, end: int) -> Iterator[tuple[int, int | None, int]]:
        """Yield number, payload length (None if it has none) and varint value of each field up to
        `end`. When a field is yielded, the stream is at its payload; the walk goes on behind it.
        """
        stream = self._stream
        while (position := stream.tell()) < end:
            self._remaining -= 1
            if self._remaining < 0:
                raise _Malformed(f"has more than {limits.MODEL_FIELDS} fields")
            tag = self._varint()
            number, wire = tag >> 3, tag & 7
            length: int | None = None
            value = 0
            if wire == _BYTES:
                length = self._varint()
                stop = stream.tell() + length
            elif wire == _VARINT:
                value = self._varint() & 0xFFFFFFFF  # an enum has 32 bits
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
