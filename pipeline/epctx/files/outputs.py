"""The files of a model group's folder, their digests, and `SHA256SUMS` (design section 6)."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import StorageError
from epctx.files import digest, listing
from epctx.files.digest import Algorithm, Buffer, Digest, HashingWriter
from epctx.files.identity import of_content

SUMS = "SHA256SUMS"
SIGNATURE = "model.sig"
"""Signature of a folder, in the folder. It covers all other files, so no list of files names it."""
CONTEXT_SUFFIX = "_ctx.onnx"
GOLDEN = "golden"
"""Folder of golden inputs and outputs in a group's folder; it has its own `SHA256SUMS`."""
KIT = "kit.json"
"""Name of the file that makes a folder a kit for devices: it says which models to load, and how."""
BESIDE = (
    *(".build.json", ".intoto.json", ".kit", ".logs", ".ortpackage", ".record.json"),
    *(".report.html", ".staging", ".tar", ".traces.json"),
)
"""Endings of the names of files and folders beside `dist/<name>/`. No manifest's name may have such
an ending: the outputs of `m.staging` would be where a build of `m` removes everything.
"""


class OutputFile(Struct, frozen=True, kw_only=True):
    """A file that epctx wrote: bare `name`, `size` in bytes, digests taken during the write."""

    name: str
    size: int
    sha256: Digest
    blake3: Digest


class GroupOutput(Struct, frozen=True, kw_only=True):
    """Outputs of a session group. `models`: manifest key to the name of its ONNX file."""

    models: dict[str, str]
    files: tuple[OutputFile, ...]


def context_file(model: str) -> str:
    """Return the file name of a model's EPContext model."""
    return f"{model}{CONTEXT_SUFFIX}"


def data_file(first: str) -> str:
    """Return the name of a sharing group's common file of weights, after its first model."""
    return f"{first}_shared.data"


def write(path: Path, chunks: Iterable[Buffer]) -> OutputFile:
    """Write and hash a new file, and flush it to the disk.

    Raises:
        StorageError: the disk is full, the folder cannot be written, or the file exists already.
    """
    with writing(path), path.open("xb", buffering=0) as stream:
        writer = HashingWriter(stream)
        for chunk in chunks:
            writer.write(chunk)
        os.fsync(stream.fileno())
    return OutputFile(name=path.name, size=writer.size, sha256=writer.sha256, blake3=writer.blake3)


class OwnFile:
    """A finished file that will become an output, and has no other use.

    Threads take its digests from the start. SHA-256 takes the longest, so other checks of the file
    meanwhile cost no time.

    Raises:
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:

        self.path = path
        self._seen = of_content(path.stat())
        threads = ThreadPoolExecutor(max_workers=2)
        self._sha256 = threads.submit(_taken, _open(path), "sha256")
        self._blake3 = threads.submit(_taken, _open(path), "blake3")
        threads.shutdown(wait=False)

    def take(self, path: Path) -> OutputFile | None:
        """Move the file to the new `path`, flush it to the disk, and wait for its digests.

        If the file has changed since then, its digests are taken again.

        Return None, and change nothing, if the file cannot be moved: it is a link, has another hard
        link, or is on another disk.

        Raises:
            StorageError: the file cannot be flushed, or `path` exists.
        """
        with writing(path):
            status = self.path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                return None
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, "it exists already")
            if sys.platform == "win32":
                self._digests()  # Windows cannot rename an open file
            try:
                self.path.rename(path)
            except OSError:
                return None
            with path.open("r+b") as stream:
                os.fsync(stream.fileno())
                size = os.fstat(stream.fileno()).st_size
            sha256, blake3 = self._digests()
            if of_content(path.stat()) != self._seen:
                sha256, blake3 = _taken(_open(path), "sha256"), _taken(_open(path), "blake3")
            return OutputFile(name=path.name, size=size, sha256=sha256, blake3=blake3)

    def _digests(self) -> tuple[Digest, Digest]:
        return self._sha256.result(), self._blake3.result()


def _open(path: Path) -> FileIO:
    return path.open("rb", buffering=0)


def _taken(stream: FileIO, algorithm: Algorithm) -> Digest:
    with stream:
        return digest.of_stream(stream, algorithm)


def sums(files: Iterable[OutputFile]) -> bytes:
    """Return the content of `SHA256SUMS`, sorted by name, in the format of `sha256sum`."""
    lines = [f"{f.sha256.hex}  {f.name}\n" for f in sorted(files, key=lambda f: f.name)]
    return "".join(lines).encode()


def write_sums(folder: Path, files: Sequence[OutputFile]) -> OutputFile:
    """Write `SHA256SUMS` of `files`."""
    return write(folder / SUMS, [sums(files)])


def sync_files(paths: Iterable[Path]) -> None:
    """Flush files that `write` did not write to the disk.

    Raises:
        StorageError: a file cannot be flushed.
    """
    for path in paths:
        # Windows flushes only files that are open for writing.
        with writing(path), path.open("r+b") as stream:
            os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk; Windows has no such call and needs none."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_foreign(path: Path) -> None:
    """Refuse to write into a link, or into another user's entry, which that user can replace.

    Root may write into the folders of others. `path` need not exist.

    Raises:
        StorageError: `path` is a link or belongs to another user.
    """
    if not os.path.lexists(path):
        return
    status = path.lstat()
    owner = None if sys.platform == "win32" or os.geteuid() == 0 else listing.other_owner(status)
    if listing.is_link(status) or owner is not None:
        raise StorageError(
            "is a link" if owner is None else f"belongs to another user, {owner}",
            file=path.as_posix(),
            why="epctx writes folders there, and removes everything that it did not make anew",
            remedy="remove it, or choose another folder",
            code=Code.OUTPUT_CHANGED,
        )


@contextmanager
def refusals() -> Iterator[None]:
    """Turn an OSError of the block into StorageError if the system refused the operation.

    A build writes in a hundred places, and at each the disk may be full. Other OSErrors pass
    through, such as a missing file.

    Raises:
        StorageError: the disk is full or broken, a quota is reached, access is denied, or no file
            descriptor is left.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        place = error.filename2 or error.filename
        path = Path(os.fsdecode(place)) if isinstance(place, str | bytes) else Path(os.curdir)
        raise unwritable(path, error) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into StorageError: `path` cannot be written.

    Raises:
        StorageError: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> StorageError:
    """Return the error for a write that the system refused."""
    remedy = _REMEDIES.get(error.errno or 0, "choose another folder with --out")
    return StorageError(
        "cannot be written", file=str(path), why=error.strerror or str(error), remedy=remedy
    )


def changed(path: Path) -> StorageError:
    """Return the error for an output that another program changed."""
    return StorageError(
        "was changed after it was built",
        file=str(path),
        remedy="build again while nothing writes to the output folder",
        code=Code.OUTPUT_CHANGED,
    )


_FULL = "free some space, or choose another folder with --out"
_FORBIDDEN = "choose a folder that you may write to with --out"
_BROKEN = "check the system's log: the disk may be failing"
_CUT = "a source was cut short while it was read: build again when nothing writes to it"
_LIMIT = "close other programs, or raise the limit (`ulimit -n`)"
_IN_THE_WAY = "move the existing entry away, or choose another folder with --out"
_REMEDIES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: _FORBIDDEN,
    errno.EEXIST: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EISDIR: _IN_THE_WAY,
    errno.EIO: _BROKEN,
    errno.EFAULT: _CUT,  # the mapped source was cut, not the file that is written to
    errno.EMFILE: _LIMIT,
    errno.ENFILE: _LIMIT,
}
REFUSED = frozenset(_REMEDIES) - {errno.EEXIST, errno.ENOTDIR, errno.EISDIR}
