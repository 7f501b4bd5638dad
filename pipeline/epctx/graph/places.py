"""Places of an optimized model's files on this host: light, for code that moves such folders.

`graph.store` writes and reads the folders. `places.json` is the one file in them that differs
between hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from epctx import codec
from epctx.errors import ModelError
from epctx.files import identity

RECORD = "record.json"
PLACES = "places.json"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a file is, and what tells that it is unchanged (files.identity)."""

    path: str
    identity: str

    @classmethod
    def of_source(cls, path: Path) -> Place:
        """Of a file that was just read.

        Raises:
            ModelError: it is gone.
        """
        with ModelError.if_refused(
            "is gone, and was there when it was read",
            file=str(path),
            remedy="build again when nothing removes the model's files",
        ):
            return cls(path=str(path), identity=identity.of_path(path).text)

    def is_unchanged(self) -> bool:
        """The file is there, and as it was."""
        try:
            now = identity.of_path(Path(self.path)).text
            return now == self.identity and identity.tells(self.path, now)
        except OSError:
            return False


class _File(msgspec.Struct, frozen=True, kw_only=True):
    digest: str
    name: str | None = None


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[_File, ...]


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
        else Place.of_source(path)
        for file in record.files
    ]
    (folder / PLACES).write_bytes(msgspec.json.encode(places))


def made(folder: Path) -> Mapping[str, Path]:
    """Return the files in `folder` that passes made for its model, by digest, as text; pieces of
    the model refer to them. Raises as `sources`.
    """
    record = codec.decode((folder / RECORD).read_bytes(), _Record)
    return {file.digest: folder / file.name for file in record.files if file.name is not None}


def sources(folder: Path) -> Mapping[str, Path]:
    """Where the sources of the model in `folder` are said to be: their digests, as text, to paths.

    Raises:
        OSError, msgspec.MsgspecError: the folder is no optimized model's, or is damaged.
    """
    record = codec.decode((folder / RECORD).read_bytes(), _Record)
    places = codec.decode((folder / PLACES).read_bytes(), list[Place | None])
    return {
        file.digest: Path(place.path)
        for file, place in zip(record.files, places, strict=True)
        if place is not None
    }
