"""Places of an optimized model's files on this host.

`graph.store` writes and reads the folders. `places.json` is the one file in them that differs
between hosts. This module does not import onnx, so code that moves the folders starts fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from epctx import codec
from epctx.errors import ModelError
from epctx.files import identity
from epctx.graph.model import PassRecord

RECORD = "record.json"
PLACES = "places.json"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Path of a file, and its identity, which reveals a change (files.identity)."""

    path: str
    identity: str

    @classmethod
    def of_source(cls, path: Path) -> Place:
        """Return the place of a file that was just read.

        Raises:
            ModelError: the file is gone.
        """
        with ModelError.if_refused(
            "was removed after epctx had read it",
            file=str(path),
            remedy="build again when nothing removes the model's files",
        ):
            return cls(path=str(path), identity=identity.of_path(path).text)

    def is_unchanged(self) -> bool:
        """Tell whether the file exists and has not changed."""
        try:
            now = identity.of_path(Path(self.path)).text
            return now == self.identity and identity.tells(self.path, now)
        except OSError:
            return False


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A range of a file that holds a weight, with the digest of its bytes."""

    offset: int
    length: int
    digest: str


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file of weights; `name` is set if the file is in the folder itself."""

    size: int
    digest: str
    parts: tuple[Part, ...]
    name: str | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `record.json`."""

    version: int
    name: str
    digest: str
    graph: str
    passes: tuple[PassRecord, ...]
    files: tuple[File, ...]


def read_record(folder: Path) -> Record:
    """Read `record.json`. Raises OSError or msgspec.MsgspecError if it is missing or damaged."""
    return codec.decode((folder / RECORD).read_bytes(), Record)


def read(folder: Path) -> list[Place | None]:
    """Read `places.json`. Raises OSError or msgspec.MsgspecError if it is missing or damaged."""
    return codec.decode((folder / PLACES).read_bytes(), list[Place | None])


def write(folder: Path, sources: Mapping[str, Path]) -> None:
    """Write the places of the model's sources; `sources` has their paths by digest, as text.

    The caller has verified their content before their stat is taken here.

    Raises:
        ModelError: a source is gone.
        OSError: the folder cannot be written.
    """
    places = [
        None
        if file.name is not None or (path := sources.get(file.digest)) is None
        else Place.of_source(path)
        for file in read_record(folder).files
    ]
    (folder / PLACES).write_bytes(msgspec.json.encode(places))


def sources(folder: Path) -> Mapping[str, Path]:
    """Return the recorded paths of the model's sources, by digest, as text.

    Raises:
        OSError, msgspec.MsgspecError: the folder has no optimized model, or is damaged.
    """
    return {
        file.digest: Path(place.path)
        for file, place in zip(read_record(folder).files, read(folder), strict=True)
        if place is not None
    }
