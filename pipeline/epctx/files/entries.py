"""Entries of the cache, opened without following a link or waiting for a pipe.

Users who can write to a cache's folder could put a link, a pipe or a device in place of a file.
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

from epctx.files import open_flags

_NAME = re.compile(r"[0-9a-f]{64}")


def entries(folder: Path) -> Iterator[Path]:
    """Yield the entries `ab/abcd…` of a folder, sorted; epctx puts nothing else there."""
    for shard in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not shard.is_symlink() and shard.is_dir():
            for entry in sorted(shard.iterdir()):
                if _NAME.fullmatch(entry.name) and entry.name.startswith(shard.name):
                    yield entry


class Irregular(OSError):
    """An entry is not a regular file."""

    reason = "is not a regular file"

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, self.reason, str(path))


def discard(path: Path) -> None:
    """Remove an entry of any type. Raises OSError."""
    try:
        path.unlink(missing_ok=True)
    except (IsADirectoryError, PermissionError):  # the latter on Windows and macOS
        if path.is_symlink() or not path.is_dir():
            raise
        shutil.rmtree(path)


def open_entry(path: Path) -> FileIO:
    """Open a regular file for reading, without following a link or waiting for a pipe.

    Raises:
        FileNotFoundError: the entry does not exist.
        Irregular: the entry is a link, a folder, a pipe or a device.
        OSError: the file cannot be read.
    """
    # Check before opening: opening a device may have effects, and Windows links show only here.
    if not stat.S_ISREG(path.lstat().st_mode):
        raise Irregular(path)
    try:
        descriptor = os.open(path, open_flags.READ | open_flags.NO_LINK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise Irregular(path) from error
        raise
    stream = FileIO(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        stream.close()
        raise Irregular(path)
    return stream
