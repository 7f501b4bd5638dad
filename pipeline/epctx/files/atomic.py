"""Atomic replacement of a file: a new one is written beside it, flushed and renamed."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from epctx.files.entries import open_entry
from epctx.files.outputs import writing

if sys.platform != "win32":
    import fcntl


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a stream whose content replaces `path` at the end; after a failure `path` is unchanged.

    Temporary files of killed processes are removed.

    Raises:
        OSError: the file cannot be written or replaced.
    """
    stream = _create(path)
    temporary = Path(stream.name)
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if sys.platform != "win32":  # Windows cannot rename an open file
                temporary.replace(path)
        if sys.platform == "win32":
            temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # report the first error only
            temporary.unlink()
        raise
    _discard_abandoned(path)


def replace(path: Path, content: bytes) -> None:
    """Write a small file, and replace the file at `path` if there is one.

    Raises:
        StorageError: the file cannot be written or replaced.
    """
    with writing(path), replacing(path) as stream:
        stream.write(content)


def _create(path: Path) -> BinaryIO:
    """Create a file beside `path`, locked while it is open, so that others see that it is in use.

    A process id in its name would not be enough: other containers use the same ids.
    """
    while True:
        stream = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp").open("xb")
        try:
            alone = _lock(stream)
        except OSError:  # a file system without locks
            alone = True
        if alone and os.path.lexists(stream.name):
            return stream
        stream.close()  # another process removed the file before it was locked


def _discard_abandoned(path: Path) -> None:
    for abandoned in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 16}.tmp"):
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                abandoned.unlink()  # fails if the file is open
            else:
                with open_entry(abandoned) as stream:
                    if _lock(stream):
                        abandoned.unlink()


def _lock(stream: BinaryIO | FileIO) -> bool:
    """Lock a file; return False if another process has locked it. On Windows no lock is needed."""
    if sys.platform != "win32":
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
