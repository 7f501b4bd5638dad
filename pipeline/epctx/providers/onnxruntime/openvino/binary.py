"""The context binary of Intel's OpenVINO plugin EP.

    bytes 0-7    OVEP_BIN
    8-15         format version, 1
    16-23        size of this header, 40
    24-31        offset of a BSON document
    32-39        size of the document
    then         the document: producer, version, blob_metadata_map: {name: {data_offset, size}}
    then         the blobs, each the serialized model of one EPContext node

Derived from files by onnxruntime-ep-openvino 1.8.1 (format 1, document version 1.1.0).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from epctx import limits
from epctx.files.digest import Buffer
from epctx.graph.weights.data_file import DataFile

MAGIC: Final = b"OVEP_BIN"
_HEADER: Final = struct.Struct("<8sQQQQ")
_ALIGNMENT: Final = 65536
"""Alignment of blobs and of the file's end, in bytes."""

_NUMBERS: Final = {0x01: "<d", 0x10: "<i", 0x11: "<q", 0x12: "<q"}
"""BSON's types of numbers: double, int32, timestamp, int64."""

Bson = Mapping[str, "Bson | str | int | float | bool | bytes | None"]


class Blob(Struct, frozen=True, kw_only=True):
    """A compiled graph; its name is the `partition_name` of its EPContext node."""

    name: str
    offset: int
    size: int


class OpenVinoBinary(Struct, frozen=True, kw_only=True):
    """A context binary. `producer`: plugin and its version; `version`: version of the document."""

    producer: str
    version: str
    blobs: tuple[Blob, ...]


class Malformed(ValueError):
    """The file is not an OpenVINO context binary, or is broken."""


def read(path: Path) -> OpenVinoBinary:
    """Read the table of a context binary, without the blobs.

    Raises:
        Malformed: the header, the document or a blob's place is wrong.
    """
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        head = stream.read(_HEADER.size)
        if len(head) < _HEADER.size:
            raise Malformed(f"it has {size} bytes, its header alone has {_HEADER.size}")
        magic, version, _, start, length = _HEADER.unpack(head)
        if magic != MAGIC or version != 1:
            raise Malformed(f"it begins with {magic!r}, version {version}")
        if length > limits.DOCUMENT_BYTES.value or start + length > size:
            raise Malformed(f"its table reaches to byte {start + length} of {size}")
        stream.seek(start)
        document = _Reader(stream.read(length)).document(0)
    blobs = tuple(_blobs(document.get("blob_metadata_map"), size))
    return OpenVinoBinary(
        producer=str(document.get("producer", "")),
        version=str(document.get("version", "")),
        blobs=blobs,
    )


def merge(paths: Sequence[Path]) -> Iterator[Buffer]:
    """Yield one binary with the blobs of several, in the order of their names.

    Raises:
        Malformed: a binary is broken or of another version, or two have a blob of the same name.
    """
    binaries = [read(path) for path in paths]
    makers = sorted({(binary.producer, binary.version) for binary in binaries})
    if len(makers) > 1:
        raise Malformed(f"they are by {' and by '.join(producer for producer, _ in makers)}")
    sources: dict[str, tuple[Path, Blob]] = {}
    for path, binary in zip(paths, binaries, strict=True):
        for blob in binary.blobs:
            if blob.name in sources:
                raise Malformed(
                    f"{path.name} and {sources[blob.name][0].name} both have {blob.name}"
                )
            sources[blob.name] = (path, blob)
    # The table's size does not depend on the offsets, which have 64 bits each.
    places = dict.fromkeys(sources, 0)
    end = _HEADER.size + len(_table(places, sources, *makers[0]))
    for name in sorted(sources):
        places[name] = end = _aligned(end)
        end += sources[name][1].size
    table = _table(places, sources, *makers[0])
    yield _HEADER.pack(MAGIC, 1, _HEADER.size, _HEADER.size, len(table)) + table
    written = _HEADER.size + len(table)
    for name in sorted(sources):
        yield bytes(places[name] - written)
        path, blob = sources[name]
        yield from DataFile.open(path).chunks(blob.offset, blob.size)
        written = places[name] + blob.size
    yield bytes(_aligned(written) - written)


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def _table(
    places: Mapping[str, int],
    sources: Mapping[str, tuple[Path, Blob]],
    producer: str,
    version: str,
) -> bytes:
    entries = {
        name: _document(
            _element(0x12, "data_offset", struct.pack("<q", places[name])),
            _element(0x12, "size", struct.pack("<q", sources[name][1].size)),
        )
        for name in sorted(sources)
    }
    blobs = _document(*(_element(0x03, name, entry) for name, entry in entries.items()))
    return _document(
        _element(0x03, "blob_metadata_map", blobs),
        _element(0x02, "producer", _string(producer)),
        _element(0x02, "version", _string(version)),
    )


def _document(*elements: bytes) -> bytes:
    content = b"".join(elements) + b"\0"
    return struct.pack("<i", len(content) + 4) + content


def _element(kind: int, name: str, value: bytes) -> bytes:
    return bytes([kind]) + name.encode() + b"\0" + value


def _string(text: str) -> bytes:
    encoded = text.encode() + b"\0"
    return struct.pack("<i", len(encoded)) + encoded


def _blobs(table: object, size: int) -> list[Blob]:
    blobs = []
    for name, entry in table.items() if isinstance(table, Mapping) else ():
        match entry:
            case {"data_offset": int(offset), "size": int(length)}:
                if offset < 0 or length < 0 or offset + length > size:
                    raise Malformed(f"blob {name} reaches to byte {offset + length} of {size}")
                blobs.append(Blob(name=name, offset=offset, size=length))
            case _:
                raise Malformed(f"blob {name} has no place in the file")
    return blobs


class _Reader:
    """Reader of that part of BSON (bsonspec.org, version 1.1) that the table uses."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def document(self, depth: int) -> Bson:
        if depth > limits.DOCUMENT_DEPTH.value:
            raise Malformed("its table is nested too deeply")
        start = self._position
        (length,) = self._unpack("<i")
        elements: dict[str, Bson | str | int | float | bool | bytes | None] = {}
        while kind := self._take(1)[0]:
            name = self._name()
            elements[name] = self._value(kind, depth)
        if self._position - start != length:
            raise Malformed("its table is broken")
        return elements

    def _value(self, kind: int, depth: int) -> Bson | str | int | float | bool | bytes | None:
        match kind:
            case 0x02:
                (length,) = self._unpack("<i")
                return self._take(length)[:-1].decode(errors="replace")
            case 0x03 | 0x04:
                return self.document(depth + 1)
            case 0x05:
                (length,) = self._unpack("<i")
                return self._take(length + 1)[1:]
            case 0x08:
                return bool(self._take(1)[0])
            case 0x0A:
                return None
            case 0x01 | 0x10 | 0x11 | 0x12:
                return self._unpack(_NUMBERS[kind])[0]
        raise Malformed(f"its table has a value of type {kind:#04x}")

    def _name(self) -> str:
        end = self._data.find(b"\0", self._position)
        if end < 0:
            raise Malformed("its table is cut short")
        name = self._data[self._position : end]
        self._position = end + 1
        return name.decode(errors="replace")

    def _unpack(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))

    def _take(self, count: int) -> bytes:
        taken = self._data[self._position : self._position + count]
        if count < 0 or len(taken) != count:
            raise Malformed("its table is cut short")
        self._position += count
        return taken
