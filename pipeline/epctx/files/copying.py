"""Copies of files into and out of the cache: clones if the file system makes them, never links.

A clone (FICLONE: btrfs, XFS, bcachefs) shares blocks until one side is written to, so an edit of an
output cannot reach the cache. Without clones, bytes are copied, by the kernel if they need not be
hashed. On Windows the system's copy makes clones by itself if it can (ReFS, Dev Drive).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from io import FileIO
from pathlib import Path

import blake3

from epctx.files.digest import Digest

if sys.platform != "win32":
    import fcntl

_CHUNK = 1 << 22
_FICLONE = 0x40049409
"""linux/fs.h: _IOW(0x94, 9, int)."""
_NO_CLONE = frozenset(
    {
        errno.EOPNOTSUPP,
        errno.EXDEV,
        errno.EINVAL,
        errno.ENOTTY,
        errno.ENOSYS,
        errno.EPERM,
        errno.EBADF,
    }
)


def copy(source: Path, target: Path) -> None:
    """Copy content to the new file `target` without hashing it. Raises OSError."""
    if sys.platform == "win32":
        shutil.copyfile(source, target)
        return
    with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
        if not _clone(reader.fileno(), writer.fileno()):
            _move(reader.fileno(), writer.fileno())


def copy_hashed(source: FileIO, target: Path) -> Digest:
    """Copy a file to the new file `target`; return the BLAKE3 of the copy. Raises OSError.

    Each byte is read once: during the copy, or from the clone.
    """
    hasher = blake3.blake3()
    buffer = memoryview(bytearray(min(os.fstat(source.fileno()).st_size + 1, _CHUNK)))
    with target.open("x+b", buffering=0) as writer:
        cloned = _clone(source.fileno(), writer.fileno())
        stream = writer if cloned else source
        while count := stream.readinto(buffer):
            hasher.update(buffer[:count])
            if not cloned:
                _write(writer.fileno(), buffer[:count])
    return Digest("blake3", hasher.hexdigest())


def _clone(source: int, target: int) -> bool:
    """Try to make `target` a clone of `source`; leave both unchanged if that fails."""
    if sys.platform == "linux":
        try:
            fcntl.ioctl(target, _FICLONE, source)
        except OSError as error:
            if error.errno not in _NO_CLONE:
                raise
        else:
            return True
    return False


def _move(source: int, target: int) -> None:
    # A Python that was built for an old C library does not have the call.
    if sys.platform == "linux" and hasattr(os, "copy_file_range"):
        with contextlib.suppress(OSError):
            while os.copy_file_range(source, target, 1 << 30):
                pass
    # Copy the rest: both descriptors stand where the kernel stopped.
    while piece := os.read(source, _CHUNK):
        _write(target, memoryview(piece))


def _write(target: int, data: memoryview) -> None:
    while data:
        data = data[os.write(target, data) :]
