"""QNN's flexible context binary, one file for several chips, in DLC format (a ZIP).

Measured with QAIRT 2.51: its entries are stored without compression, each at a multiple of
4096 bytes. `htp.cache.<chip>.0` is a context binary for one chip, which the system library
can read alone, without its weights. The weights are stored once, in `htp.shared.weights.<hash>`.
`dlc.metadata` is JSON with the chip of each cache, by which a loader chooses.

Only that JSON holds the build time: a "timestamp" of 23 characters for the file, for each context
and for each entry of caches and weights. Two builds differ in nothing else. `canonicalize` replaces
each timestamp by the first instant that a ZIP can express. Lengths, and so all offsets, stay the
same. No checksum needs an update, since QNN writes 0 for the ZIP's CRCs. A loader chooses by the
chip, and was not seen to look at the time.

This module imports only the standard library, since `binary_reader` uses it.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

MAGIC: Final = b"PK\x03\x04"
CACHE: Final = "htp.cache."
WEIGHTS: Final = "htp.shared.weights."
_METADATA: Final = "dlc.metadata"
_EPOCH: Final = b"1980-01-01 00:00:00 UTC"
_TIMESTAMP: Final = re.compile(rb'(?<="timestamp": ")\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC(?=")')
_HEADER: Final = struct.Struct("<4s22xHH")
"""Local header of an entry: signature, length of its name, length of its extra field."""


class Entry(NamedTuple):
    """An entry of the ZIP. `offset`: where the content begins; `crc`: the ZIP's CRC, 0 if QNN wrote
    the file.
    """

    name: str
    offset: int
    size: int
    crc: int


def entries(stream: IO[bytes]) -> list[Entry]:
    """Return the entries of a DLC, in the order of its table.

    Raises:
        ValueError: the file is not a ZIP, is broken, or is compressed.
        OSError: the file cannot be read.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            infos = archive.infolist()
    # zipfile raises NotImplementedError for versions of ZIP that it does not know.
    except (zipfile.BadZipFile, NotImplementedError, EOFError, struct.error) as error:
        raise ValueError(f"its table cannot be read: {error}") from None
    end = stream.seek(0, 2)
    return [_entry(stream, each, end) for each in infos]


def _entry(stream: IO[bytes], info: zipfile.ZipInfo, end: int) -> Entry:
    stream.seek(info.header_offset)
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size or info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"its entry {info.filename} is compressed or cut short")
    magic, length, extra = _HEADER.unpack(header)
    name = stream.read(length).decode(errors="replace")
    offset = info.header_offset + _HEADER.size + length + extra
    if (magic, name) != (MAGIC, info.orig_filename) or offset + info.file_size > end:
        raise ValueError(f"its entry {info.filename} is cut short")
    return Entry(name=info.filename, offset=offset, size=info.file_size, crc=info.CRC)


def chips(stream: IO[bytes], parts: Sequence[Entry]) -> Mapping[str, int]:
    """Return the chip of each cache, from the metadata.

    Raises:
        ValueError: the metadata does not name the chips.
        OSError: the file cannot be read.
    """
    for part in parts:
        if part.name.startswith(_METADATA):
            stream.seek(part.offset)
            try:
                listed = json.loads(stream.read(part.size))["cacheList"]
                return {str(each["cacheName"]): int(each["socModel"]) for each in listed}
            except (KeyError, TypeError, RecursionError) as error:
                raise ValueError(
                    f"{part.name} does not list the chips of the caches: {error}"
                ) from None
    raise ValueError(f"it has no {_METADATA}")


def canonicalize(path: Path) -> bool:
    """Remove the build time from a DLC. Returns whether the file is a DLC.

    A DLC with checksums was not written by QNN 2.51, and is not changed.

    Raises:
        ValueError: the file is a broken ZIP.
        OSError: the file cannot be read or written.
    """
    with path.open("r+b") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            return False
        for part in entries(stream):
            if part.name.startswith(_METADATA) and not part.crc:
                stream.seek(part.offset)
                text = stream.read(part.size)
                stream.seek(part.offset)
                stream.write(_TIMESTAMP.sub(_EPOCH, text))
    return True
