"""The one door through which files are opened for reading, and the entries of the cache.

In place of a file there may be a folder, a pipe that nobody writes to, or a device that never ends.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Final, Literal

from epctx.files import open_flags

_NAME = re.compile(r"[0-9a-f]{64}")
Kind = Literal["file", "folder", "pipe", "device"]
_KINDS: Final[dict[int, Kind]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "pipe",
}


def entries(folder: Path) -> Iterator[Path]:
    """Yield the entries `ab/abcd…` of a folder, sorted; epctx puts nothing else there."""
    for shard in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not shard.is_symlink() and shard.is_dir():
            for entry in sorted(shard.iterdir()):
                if _NAME.fullmatch(entry.name) and entry.name.startswith(shard.name):
                    yield entry


class Irregular(OSError):
    """A path leads to something else than a regular file. `reason`: one clause."""

    def __init__(self, path: Path, kind: Kind = "device") -> None:
        self.reason = "is a folder" if kind == "folder" else "is not a regular file"
        super().__init__(errno.EINVAL, self.reason, str(path))


def discard(path: Path) -> None:
    """Remove an entry of any type. Raises OSError."""
    try:
        path.unlink(missing_ok=True)
    except (IsADirectoryError, PermissionError):  # the latter on Windows and macOS
        if path.is_symlink() or not path.is_dir():
            raise
        shutil.rmtree(path)


def kind_of(status: os.stat_result) -> Kind:
    """Return what a path leads to; links and sockets count as devices."""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "device")


def opened(path: Path, *, links: bool = True, pipes: bool = False) -> int:
    """Open a regular file for reading, and return its descriptor.

    Args:
        links: follow links.
        pipes: also open a pipe, and wait until somebody writes to it; a signal ends the wait.

    Raises:
        FileNotFoundError: the file does not exist.
        Irregular: the path leads to something else.
        OSError: the file cannot be opened.
    """
    # Check before opening: opening a device may have effects, and Windows links show only here.
    kind = kind_of(path.stat(follow_symlinks=links))
    waits = pipes and kind == "pipe"
    if kind != "file" and not waits:
        raise Irregular(path, kind)
    flags = os.O_RDONLY if waits else open_flags.READ
    try:
        descriptor = os.open(path, flags if links else flags | open_flags.NO_LINK)
    except OSError as error:
        if not links and error.errno in (errno.ELOOP, errno.EMLINK):
            raise Irregular(path) from error
        raise
    if kind_of(os.fstat(descriptor)) != kind:
        os.close(descriptor)
        raise Irregular(path)
    return descriptor


class _Bounded(FileIO):
    """A regular file; `read` takes memory for what the file has, not for the limit it is given."""

    def read(self, size: int | None = -1, /) -> bytes:
        most = os.fstat(self.fileno()).st_size + 1
        return super().read(min(size, most) if size and size > 0 else size)


def open_entry(path: Path) -> FileIO:
    """Open an entry of a folder that others may write to: no link is followed.

    Raises:
        OSError: as `opened`.
    """
    return _Bounded(opened(path, links=False))


def read_document(path: Path, limit: int, *, pipes: bool = False) -> bytes:
    """Read a file that the user named; at most `limit` bytes, and one more if it has more.

    Args:
        pipes: also read a pipe, to its end.

    Raises:
        OSError: as `opened`.
    """
    descriptor = opened(path, pipes=pipes)
    if kind_of(os.fstat(descriptor)) == "file":
        with _Bounded(descriptor) as file:
            return file.read(limit + 1)
    with os.fdopen(descriptor, "rb") as pipe:  # buffered: a pipe comes in parts
        return pipe.read(limit + 1)
