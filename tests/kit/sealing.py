"""Checksums of reference binaries made right again, as somebody does who changes one on purpose."""

from __future__ import annotations

import struct

from epctx.files.digest import of_bytes
from epctx.providers.reference.layout import (
    ENTRY,
    HEADER,
    KINDS,
    NO_CHECKSUM,
    PREFIX_SIZE,
    SECTION_ALIGNMENT,
    TENSOR,
    TENSOR_ALIGNMENT,
    Meta,
    Section,
    align,
    pack_json,
    pack_prefix,
)


def resealed(data: bytes) -> bytes:
    """The file with the checksums of what it holds; what has no place for one is as it was."""
    found = bytearray(data)
    if len(found) < PREFIX_SIZE:
        return data
    places = [HEADER.size + ENTRY.size * index for index in range(len(KINDS))]
    entries = [ENTRY.unpack_from(found, place) for place in places]
    start, length = entries[3][2:4]
    for at in range(start, min(start + length, len(found) - TENSOR.size + 1), TENSOR.size):
        offset, size, _ = TENSOR.unpack_from(found, at)
        TENSOR.pack_into(found, at, offset, size, _digest(found[offset : offset + size]))
    for place, (kind, low, offset, size, high, _) in list(zip(places, entries, strict=True))[:4]:
        digest = _digest(found[offset : offset + size])
        ENTRY.pack_into(found, place, kind, low, offset, size, high, digest)
    HEADER.pack_into(
        found, 0, *HEADER.unpack_from(found, 0)[:-1], _digest(found[HEADER.size : PREFIX_SIZE])
    )
    return bytes(found)


def without_graphs() -> bytes:
    """A sound binary with nothing in it."""
    meta = Meta(
        sdk_version="1.0.0",
        driver_version="1.0.0",
        hardware_architecture="generic",
        source="reference",
    )
    parts = dict(zip(KINDS, (pack_json(meta), pack_json([]), b"", b"", b""), strict=True))
    data, sections = bytes(PREFIX_SIZE), []
    for kind, part in parts.items():
        last = kind == KINDS[-1]
        offset = align(len(data), TENSOR_ALIGNMENT if last else SECTION_ALIGNMENT)
        digest = NO_CHECKSUM if last else _digest(part)
        sections.append(Section(kind=kind, offset=offset, length=len(part), digest=digest))
        data = data.ljust(offset, b"\0") + part
    return pack_prefix(sections, len(data)) + data[PREFIX_SIZE:]


def with_field(data: bytes, layout: struct.Struct, place: int, field: int, value: object) -> bytes:
    """The file with one field of a structure at `place` exchanged; checksums as they were."""
    found = bytearray(data)
    fields = list(layout.unpack_from(found, place))
    fields[field] = value
    layout.pack_into(found, place, *fields)
    return bytes(found)


def _digest(data: bytes | bytearray) -> bytes:
    return bytes.fromhex(of_bytes(bytes(data)).hex)
