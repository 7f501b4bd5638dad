"""A file put in place of another whole or not at all: written beside it, flushed, renamed."""

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
    """A stream whose content is `path` when all is written; if that fails, `path` is as it was.

    What processes wrote that were killed before they could put it in place is removed.

    Raises:
        OSError: the system refuses.
    """
    stream = _create(path)
    temporary = Path(stream.name)
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if sys.platform != "win32":  # where an open file cannot be moved
                temporary.replace(path)
        if sys.platform == "win32":
            temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # what is in the way is told, not what comes of it
            temporary.unlink()
        raise
    _discard_abandoned(path)


def replace(path: Path, content: bytes) -> None:
    """Put a small file in place of another.

    Raises:
        StorageError: the system refuses.
    """
    with writing(path), replacing(path) as stream:
        stream.write(content)


def _create(path: Path) -> BinaryIO:
    """A new file beside `path`, locked as long as it is open: nobody takes it for abandoned.

    By a number of the process it could not be told: another container has the same ones.
    """
    while True:
        stream = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp").open("xb")
        try:
            alone = _lock(stream)
        except OSError:  # a file system without locks
            alone = True
        if alone and os.path.lexists(stream.name):
            return stream
        stream.close()  # it was found in the moment before it was locked


def _discard_abandoned(path: Path) -> None:
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 16}.tmp"):
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                left.unlink()  # refused for a file that is open
            else:
                with open_entry(left) as stream:
                    if _lock(stream):
                        left.unlink()


def _lock(stream: BinaryIO | FileIO) -> bool:
    """Lock it, if nobody else has; on Windows there is no need to."""
    if sys.platform != "win32":
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
