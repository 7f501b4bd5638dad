"""Where the files of an optimized model are on this host: light, for who moves such folders.

`graph.optimized.store` writes and reads the folders; this is the one file of them that is not the
same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from epctx import codec
from epctx.errors import ModelError

RECORD = "record.json"
PLACES = "places.json"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a file is; `stamp`: device, inode, size, time of change of content and of status."""

    path: str
    stamp: tuple[int, int, int, int, int]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    digest: str
    name: str | None = None


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[_File, ...]


def stamp(path: Path) -> tuple[int, int, int, int, int]:
    """What stat says of a file that changes with it. Raises OSError."""
    status = path.stat()
    times = status.st_mtime_ns, status.st_ctime_ns
    return status.st_dev, status.st_ino, status.st_size, *times


def stamp_of_source(path: Path) -> tuple[int, int, int, int, int]:
    """The stamp of a file that was just read.

    Raises:
        ModelError: it is gone.
    """
    try:
        return stamp(path)
    except OSError as error:
        raise ModelError(
            "is gone, and was there when it was read",
            file=str(path),
            why=error.strerror,
            remedy="build again when nothing removes the model's files",
        ) from error


def write(folder: Path, sources: Mapping[str, Path]) -> None:
    """Say where the sources of the model in `folder` are: their digests, as text, to paths.

    The caller knows that their content is that, and has known it since before their stat is taken.

    Raises:
        ModelError: a source is gone.
        OSError: the folder cannot be written.
    """
    record = codec.decode((folder / RECORD).read_bytes(), _Record)
    places = [
        None
        if file.name is not None or (path := sources.get(file.digest)) is None
        else Place(path=str(path), stamp=stamp_of_source(path))
        for file in record.files
    ]
    (folder / PLACES).write_bytes(msgspec.json.encode(places))
