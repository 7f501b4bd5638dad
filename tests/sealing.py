"""Checksums of reference binaries made right again, as somebody does who changes one on purpose."""

from __future__ import annotations

import struct

from epctx.digest import of_bytes
from epctx.providers.reference.layout import ENTRY, HEADER, KINDS, PREFIX_SIZE, TENSOR


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


def with_field(data: bytes, layout: struct.Struct, place: int, field: int, value: object) -> bytes:
    """The file with one field of a structure at `place` exchanged; checksums as they were."""
    found = bytearray(data)
    fields = list(layout.unpack_from(found, place))
    fields[field] = value
    layout.pack_into(found, place, *fields)
    return bytes(found)


def _digest(data: bytes | bytearray) -> bytes:
    return bytes.fromhex(of_bytes(bytes(data)).hex)
