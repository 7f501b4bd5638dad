"""The context binary of the reference EP, format version 1: this text is its specification.

All integers are little endian. The file is

    offset 0        header, 64 bytes
    offset 64       section table, 5 entries of 64 bytes
    offset 384      sections META, GRPH, MODL, TENS and DATA, in this order

    header          8s   magic: 89 45 50 43 54 58 0D 0A (the CR LF finds transfers in text mode)
                    u32  format version: 1
                    u32  number of sections: 5
                    u64  size of the whole file, in bytes
                    8s   zeros
                    32s  BLAKE3 of the section table

    table entry     4s   kind: "META", "GRPH", "MODL", "TENS" or "DATA"
                    4s   zeros
                    u64  offset of the section in the file, in bytes
                    u64  length of the section, in bytes
                    8s   zeros
                    32s  checksum: BLAKE3 of the section; for DATA BLAKE3 of nothing, since TENS
                         has a checksum for each tensor, and the bytes between tensors are zeros

META, GRPH, MODL and TENS start at the next multiple of 8 after what is before them; DATA at the
next multiple of 4096, also when it is empty. Every gap is filled with zeros, the last section ends
the file. So no byte of a file can change unnoticed.

META is canonical JSON (sorted keys, no spaces, UTF-8) of `Meta`: which SDK made it, what it needs.

GRPH is the table of graphs, canonical JSON of a list of `GraphEntry`.

MODL is the graphs, one after the other without a gap, in GRPH's order, each an ONNX ModelProto. In
it an initializer whose data is in the tensor table has `data_location` EXTERNAL and one
`external_data` entry, "location": "blake3:<64 hex digits>", the checksum of its bytes. Everything
else, small tensors above all, is inside the ModelProto. The digest of the ModelProto therefore
identifies the graph with its weights.

TENS is the table of tensors, 48 bytes each: u64 offset in the file, a multiple of 4096; u64 length
in bytes, not 0; 32s BLAKE3 of the bytes. The bytes are as ONNX's raw_data has them. They are
stored once by content: tensors of any name, type and graph with the same bytes are one entry.
Entries are sorted by offset, and each starts at the first multiple of 4096 after the one before.

DATA is the tensors' bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from epctx.files.digest import Digest, of_bytes
from epctx.providers.reference.options import Toolchain

MAGIC: Final = b"\x89EPCTX\r\n"
FORMAT_VERSION: Final = 1
HEADER: Final = struct.Struct("<8sIIQ8s32s")
ENTRY: Final = struct.Struct("<4s4sQQ8s32s")
TENSOR: Final = struct.Struct("<QQ32s")
KINDS: Final = (b"META", b"GRPH", b"MODL", b"TENS", b"DATA")
TABLE_SIZE: Final = len(KINDS) * ENTRY.size
PREFIX_SIZE: Final = HEADER.size + TABLE_SIZE
SECTION_ALIGNMENT: Final = 8
TENSOR_ALIGNMENT: Final = 4096
REFERENCE_PREFIX: Final = "blake3:"
NO_CHECKSUM: Final = bytes(32)


class Meta(Toolchain, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """META: the toolchain that made the binary and that it needs, as in `options`.

    Attributes:
        source: the EP's key, which is the `source` of the nodes that refer to the binary.
    """

    source: str


class GraphEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graph of GRPH.

    Attributes:
        name: unique in the binary; `partition_name` of the node that uses it.
        model: file name of the model that the graph is a part of.
        offset: offset of the graph's ModelProto in MODL, in bytes.
        length: length of the ModelProto, in bytes.
        weights: bytes of the table's tensors that the graph uses, each counted once.
    """

    name: str
    model: str
    offset: int
    length: int
    weights: int


class TensorEntry(Struct, frozen=True, kw_only=True):
    """A tensor of TENS: `length` bytes at `offset` of the file."""

    offset: int
    length: int
    digest: Digest

    @property
    def end(self) -> int:
        """Offset of the first byte after the entry's bytes."""
        return self.offset + self.length


class Section(Struct, frozen=True, kw_only=True):
    """An entry of the section table; `digest` is the raw checksum."""

    kind: bytes
    offset: int
    length: int
    digest: bytes

    @property
    def end(self) -> int:
        """Offset of the first byte after the entry's bytes."""
        return self.offset + self.length


def align(offset: int, alignment: int) -> int:
    """Return the first multiple of `alignment` at or after `offset`."""
    return -(-offset // alignment) * alignment


def raw(digest: Digest) -> bytes:
    """Return the 32 bytes of a BLAKE3 digest."""
    return bytes.fromhex(digest.hex)


def pack_json(value: object) -> bytes:
    """Encode META's or GRPH's type as canonical JSON."""
    return msgspec.json.encode(value, order="sorted")


def pack_tensors(entries: Sequence[TensorEntry]) -> bytes:
    """Pack TENS."""
    return b"".join(TENSOR.pack(e.offset, e.length, raw(e.digest)) for e in entries)


def pack_prefix(sections: Sequence[Section], size: int) -> bytes:
    """Pack header and section table of a file of `size` bytes."""
    zeros = bytes(8)
    table = b"".join(
        ENTRY.pack(s.kind, zeros[:4], s.offset, s.length, zeros, s.digest) for s in sections
    )
    header = HEADER.pack(MAGIC, FORMAT_VERSION, len(sections), size, zeros, raw(of_bytes(table)))
    return header + table


class Notes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of a node's `notes`, as canonical JSON.

    Attributes:
        graph: digest of the node's graph with its weights. It detects a binary of another build at
            the same path.
        notes: value of the option `notes`.
    """

    graph: str
    notes: str

    @property
    def text(self) -> str:
        """Value of the attribute."""
        return msgspec.json.encode(self, order="sorted").decode()
