"""Entries of the cache, opened so that nothing in their place is followed, waited for or believed.

Whoever can write to a cache's folder could put a link, a pipe or a device where a file was.
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
    """The entries `ab/abcd…` of a folder, sorted; whatever else lies in it was not put by epctx."""
    for shard in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not shard.is_symlink() and shard.is_dir():
            for entry in sorted(shard.iterdir()):
                if _NAME.fullmatch(entry.name) and entry.name.startswith(shard.name):
                    yield entry


class Irregular(OSError):
    """Something is there that is no regular file."""

    reason = "is no regular file"

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, self.reason, str(path))


def discard(path: Path) -> None:
    """Remove an entry, whatever it is. Raises OSError."""
    try:
        path.unlink(missing_ok=True)
    except (IsADirectoryError, PermissionError):  # the latter on Windows and macOS
        if path.is_symlink() or not path.is_dir():
            raise
        shutil.rmtree(path)


def open_entry(path: Path) -> FileIO:
    """Open a regular file for reading: no link is followed, no pipe waited for.

    Raises:
        FileNotFoundError: there is none.
        Irregular: it is a link, a folder, a pipe or a device.
        OSError: it cannot be read.
    """
    # Before it is opened: to open a device may do something. On Windows links are found only here.
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
