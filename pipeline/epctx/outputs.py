"""The files of a model group's folder, their digests, and `SHA256SUMS` (design section 6)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from epctx.digest import Buffer, Digest, HashingWriter
from epctx.errors import StorageError

SUMS = "SHA256SUMS"


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """A file that was written: bare `name`, `size` in bytes, digests taken while it was written."""

    name: str
    size: int
    sha256: Digest
    blake3: Digest


@dataclass(frozen=True, kw_only=True)
class GroupOutput:
    """What a session group made. `models`: manifest key to the name of its ONNX file."""

    models: dict[str, str]
    files: tuple[OutputFile, ...]


def write(path: Path, chunks: Iterable[Buffer]) -> OutputFile:
    """Write a new file, hashing on the way, and flush it to the disk.

    Raises:
        StorageError: the disk is full, the folder cannot be written, or the file is there already.
    """
    try:
        with path.open("xb", buffering=0) as stream:
            writer = HashingWriter(stream)
            for chunk in chunks:
                writer.write(chunk)
            os.fsync(stream.fileno())
    except OSError as error:
        raise unwritable(path, error) from error
    return OutputFile(name=path.name, size=writer.size, sha256=writer.sha256, blake3=writer.blake3)


def sums(files: Iterable[OutputFile]) -> bytes:
    """The content of `SHA256SUMS` for `files`, sorted by name, in the format of `sha256sum`."""
    lines = [f"{f.sha256.hex}  {f.name}\n" for f in sorted(files, key=lambda f: f.name)]
    return "".join(lines).encode()


def write_sums(folder: Path, files: Sequence[OutputFile]) -> OutputFile:
    """Write `SHA256SUMS` of `files`."""
    return write(folder / SUMS, [sums(files)])


def sync_files(paths: Iterable[Path]) -> None:
    """Make the content of files durable that were not written by `write`.

    Raises:
        StorageError: the disk refuses.
    """
    for path in paths:
        try:
            # Windows flushes only what is open for writing.
            with path.open("r+b") as stream:
                os.fsync(stream.fileno())
        except OSError as error:
            raise unwritable(path, error) from error


def sync_folder(folder: Path) -> None:
    """Make a folder's entries durable; Windows has no such call and does it by itself."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unwritable(path: Path, error: OSError) -> StorageError:
    """The error for a write that the system refused."""
    remedy = _REMEDIES.get(error.errno or 0, "choose another folder with --out")
    return StorageError(
        "cannot be written", where=str(path), why=error.strerror or str(error), remedy=remedy
    )


_FULL = "free some space, or choose another folder with --out"
_FORBIDDEN = "choose a folder that you may write to with --out"
_IN_THE_WAY = "move what is there away, or choose another folder with --out"
_REMEDIES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: _FORBIDDEN,
    errno.EEXIST: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EISDIR: _IN_THE_WAY,
}
