"""QNN's flexible context binary, one file for several chips: a DLC, which is a ZIP.

Measured with QAIRT 2.51: its entries are stored as they are (nothing is compressed), each at a
multiple of 4096. `htp.cache.<chip>.0` is a context binary for one chip, which the system library
reads by itself, but for its weights: these lie once, in `htp.shared.weights.<hash>`. `dlc.metadata`
is JSON that says for each cache which chip it is for; a loader chooses by it.

That JSON alone says when the file was made: a "timestamp" of 23 characters for the file, for each
context and for each entry of caches and weights. Nothing else differs between two builds.
`canonicalize` writes the first instant that a ZIP can name in their place: lengths, and so all
offsets, stay, and there is no checksum to be mended, since QNN writes 0 where a ZIP has its CRCs.
What loads a context chooses by the chip; that it looks at the time was not seen.

Nothing but the standard library is imported here, as `binary_reader` reads with it.
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
"""Of an entry: what it begins with, and how long its name and its extra field are."""


class Entry(NamedTuple):
    """A part of the file. `offset`: of its content; `crc`: as the ZIP has it, 0 of QNN's."""

    name: str
    offset: int
    size: int
    crc: int


def entries(stream: IO[bytes]) -> list[Entry]:
    """The parts of a DLC, in the order of its table.

    Raises:
        ValueError: it is no ZIP, a broken one, or one that is not stored as QNN stores it.
        OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            found = archive.infolist()
    # zipfile raises NotImplementedError for tables of versions of ZIP that it does not know.
    except (zipfile.BadZipFile, NotImplementedError, EOFError, struct.error) as error:
        raise ValueError(f"its table cannot be read: {error}") from None
    end = stream.seek(0, 2)
    return [_entry(stream, each, end) for each in found]


def _entry(stream: IO[bytes], found: zipfile.ZipInfo, end: int) -> Entry:
    stream.seek(found.header_offset)
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size or found.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"its entry {found.filename} is not stored as it is")
    magic, length, extra = _HEADER.unpack(header)
    name = stream.read(length).decode(errors="replace")
    offset = found.header_offset + _HEADER.size + length + extra
    if (magic, name) != (MAGIC, found.orig_filename) or offset + found.file_size > end:
        raise ValueError(f"its entry {found.filename} is cut short")
    return Entry(name=found.filename, offset=offset, size=found.file_size, crc=found.CRC)


def chips(stream: IO[bytes], parts: Sequence[Entry]) -> Mapping[str, int]:
    """Return the chip of each cache, from the metadata.

    Raises:
        ValueError: it does not say.
        OSError: it cannot be read.
    """
    for part in parts:
        if part.name.startswith(_METADATA):
            stream.seek(part.offset)
            try:
                listed = json.loads(stream.read(part.size))["cacheList"]
                return {str(each["cacheName"]): int(each["socModel"]) for each in listed}
            except (KeyError, TypeError) as error:
                raise ValueError(f"{part.name} does not say what there is: {error}") from None
    raise ValueError(f"it has no {_METADATA}")


def canonicalize(path: Path) -> bool:
    """Let a DLC not say when it was made. Returns whether it is one.

    One with checksums is another than QNN 2.51 writes, and stays as it is.

    Raises:
        ValueError: it is a broken ZIP.
        OSError: it cannot be read or written.
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
