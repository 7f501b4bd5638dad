"""Read a context binary; every byte is checked before any is used.

Any deviation from the format in `layout` is an INVALID_GRAPH. Every byte is covered by a checksum,
or must be a fixed value or zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import blake3
import msgspec
from msgspec import Struct

from epctx import codec
from epctx.errors import InvalidGraph
from epctx.files.digest import Digest, of_bytes
from epctx.graph.weights.data_file import DataFile
from epctx.providers import contexts
from epctx.providers.reference.layout import (
    ENTRY,
    FORMAT_VERSION,
    HEADER,
    KINDS,
    MAGIC,
    NO_CHECKSUM,
    PREFIX_SIZE,
    SECTION_ALIGNMENT,
    TENSOR,
    TENSOR_ALIGNMENT,
    GraphEntry,
    Meta,
    Section,
    TensorEntry,
    align,
    raw,
)

T = TypeVar("T")
_COPY_AGAIN = "copy it again from where it was built, or build it again"


class Context(Struct, frozen=True, kw_only=True, eq=False):
    """A checked and mapped context binary, whose graphs share its weights.

    Attributes:
        where: the file or node with the binary, for messages.
        view: all bytes of the binary, read-only.
        file: the mapped file; None for an embedded payload.
        meta: content of META.
        graphs: graphs by name.
        tensors: table entries by digest of their bytes.
    """

    where: str
    view: memoryview
    file: DataFile | None
    meta: Meta
    graphs: Mapping[str, LoadedGraph]
    tensors: Mapping[Digest, TensorEntry]


class LoadedGraph(Struct, frozen=True, kw_only=True):
    """A graph of a context: its ModelProto and the digest of the ModelProto."""

    entry: GraphEntry
    proto: bytes
    digest: Digest


def open_file(folder: Path, location: str, *, where: str) -> Context:
    """Read the context binary at `location`, a path with `/` inside `folder`.

    Args:
        where: the node that refers to the binary, for messages.

    Raises:
        InvalidGraph: the path leads out of the folder, or not to a regular file, or the file is not
            a complete and valid context binary.
    """
    return read_file(contexts.open_binary(folder, location, where=where))


def read_file(file: DataFile) -> Context:
    """Read an open context binary.

    Raises:
        InvalidGraph: the file is not a complete and valid context binary.
    """
    return _read(file.view(), file, where=str(file.folder / file.location))


def open_payload(payload: bytes, *, where: str) -> Context:
    """Read an embedded context binary.

    Raises:
        InvalidGraph: as in `open_file`.
    """
    return _read(memoryview(payload), None, where=where)


def _read(view: memoryview, file: DataFile | None, *, where: str) -> Context:
    try:
        sections = _sections(view)
        meta = _decode(view, sections[b"META"], Meta)
        entries = _decode(view, sections[b"GRPH"], list[GraphEntry])
        graphs = _graphs(view, sections[b"MODL"], entries)
        tensors = _tensors(view, sections[b"TENS"], sections[b"DATA"])
    except _Unsound as reason:
        raise InvalidGraph(
            "is not a sound context binary", where=where, why=str(reason), remedy=_COPY_AGAIN
        ) from None
    return Context(where=where, view=view, file=file, meta=meta, graphs=graphs, tensors=tensors)


class _Unsound(Exception):
    """A fault in the bytes; `_read` adds the location."""


def _sections(view: memoryview) -> dict[bytes, Section]:
    if len(view) < PREFIX_SIZE:
        raise _Unsound(f"it is cut short: {len(view)} bytes")
    magic, version, count, size, zeros, checksum = HEADER.unpack(view[: HEADER.size])
    if magic != MAGIC:
        raise _Unsound("it does not begin with the magic bytes")
    if version != FORMAT_VERSION:
        raise _Unsound(f"format version {version}, this epctx reads {FORMAT_VERSION}")
    if size != len(view):
        raise _Unsound(f"it has {len(view)} bytes, its header says {size}")
    table = view[HEADER.size : PREFIX_SIZE]
    if count != len(KINDS) or any(zeros) or raw(of_bytes(table)) != checksum:
        raise _Unsound("header and section table do not agree")
    sections = [_section(*fields) for fields in ENTRY.iter_unpack(table)]
    if tuple(section.kind for section in sections) != KINDS:
        raise _Unsound("it does not have the sections of its format")
    end = PREFIX_SIZE
    for section in sections:
        data = section.kind == KINDS[-1]
        _follows(view, end, section.offset, TENSOR_ALIGNMENT if data else SECTION_ALIGNMENT)
        end = section.end
        name = section.kind.decode()
        if end > size:
            raise _Unsound(f"section {name} reaches beyond the file")
        if section.digest != (NO_CHECKSUM if data else raw(of_bytes(_bytes(view, section)))):
            raise _Unsound(f"the checksum of section {name} does not match its bytes")
    if end != size:
        raise _Unsound(f"{size - end} bytes follow its last section")
    return {section.kind: section for section in sections}


def _section(
    kind: bytes, low: bytes, offset: int, length: int, high: bytes, digest: bytes
) -> Section:
    if any(low) or any(high):
        raise _Unsound("a reserved field is set")
    return Section(kind=kind, offset=offset, length=length, digest=digest)


def _bytes(view: memoryview, section: Section) -> memoryview:
    return view[section.offset : section.end]


def _follows(view: memoryview, end: int, offset: int, alignment: int) -> None:
    """Check that `offset` is the next aligned offset after `end`, with zeros in between."""
    if offset != align(end, alignment) or offset > len(view):
        raise _Unsound(f"a part starts at {offset}, not at {align(end, alignment)}")
    if any(view[end:offset]):
        raise _Unsound(f"the gap before {offset} is not zeros")


def _decode(view: memoryview, section: Section, kind: type[T]) -> T:
    try:
        return codec.decode(_bytes(view, section), kind)
    except msgspec.DecodeError as error:
        raise _Unsound(f"section {section.kind.decode()}: {error}") from error


def _graphs(
    view: memoryview, section: Section, entries: Sequence[GraphEntry]
) -> dict[str, LoadedGraph]:
    end = 0
    graphs: dict[str, LoadedGraph] = {}
    for entry in entries:
        if entry.offset != end or entry.length <= 0:
            raise _Unsound(f"graph {entry.name!r} is at the wrong offset")
        if entry.name in graphs:
            raise _Unsound(f"two graphs are called {entry.name!r}")
        end += entry.length
        if end > section.length:
            raise _Unsound(f"graph {entry.name!r} reaches beyond its section")
        proto = bytes(view[section.offset + entry.offset : section.offset + end])
        graphs[entry.name] = LoadedGraph(entry=entry, proto=proto, digest=of_bytes(proto))
    if end != section.length:
        raise _Unsound("section MODL holds more than its graphs")
    return graphs


def _tensors(view: memoryview, table: Section, data: Section) -> dict[Digest, TensorEntry]:
    if table.length % TENSOR.size:
        raise _Unsound("section TENS is not a table of tensors")
    end = data.offset
    tensors: dict[Digest, TensorEntry] = {}
    for offset, length, digest in TENSOR.iter_unpack(_bytes(view, table)):
        entry = TensorEntry(
            offset=offset, length=length, digest=Digest("blake3", bytes(digest).hex())
        )
        _follows(view, end, offset, TENSOR_ALIGNMENT)
        end = entry.end
        if not length or end > data.end:
            raise _Unsound(f"the tensor at {offset} is empty or reaches beyond its section")
        if entry.digest in tensors or _hash(view[offset:end]) != entry.digest:
            raise _Unsound(f"the checksum of the tensor at {offset} does not match its bytes")
        tensors[entry.digest] = entry
    if end != data.end:
        raise _Unsound("section DATA holds more than its tensors")
    return tensors


def _hash(view: memoryview) -> Digest:
    """Hash with BLAKE3 on all cores, since weights are most of a file and a session waits for the
    hash.
    """
    hasher = blake3.blake3(view, max_threads=blake3.blake3.AUTO)
    return Digest("blake3", hasher.hexdigest())
