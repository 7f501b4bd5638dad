"""A file of weights whose digests are known before anybody reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from epctx.files.digest import Digest
from epctx.files.regular import open_regular
from epctx.graph.weights.mapped import DataFile


class KnownFile(DataFile):
    """A data file that was hashed when it was written, or by the process that handed it over.

    Attributes:
        parts: digests of ranges (offset, length).
    """

    def __init__(
        self,
        folder: Path,
        location: str,
        *,
        path: Path,
        descriptor: int,
        whole: Digest,
        parts: Mapping[tuple[int, int], Digest],
    ) -> None:
        """Take over an open descriptor, as DataFile does."""
        super().__init__(folder, location, path=path, descriptor=descriptor)
        self.parts = parts
        self._whole = whole
        self._parts.update(parts)


def open_known(path: Path, *, whole: Digest, parts: Mapping[tuple[int, int], Digest]) -> KnownFile:
    """Open a file whose digests are these.

    Raises:
        ModelError: it is missing, not a regular file, or cannot be read.
    """
    real, descriptor = open_regular(path, where=str(path))
    return KnownFile(
        path.parent, path.name, path=real, descriptor=descriptor, whole=whole, parts=parts
    )
