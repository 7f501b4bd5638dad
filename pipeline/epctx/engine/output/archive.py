"""`dist/<name>.tar`: all published files; the same files give the same bytes.

POSIX.1-2001 (pax), entries sorted, folders first: owner and group 0 without names, no times, mode
0755 for folders and 0644 for files. It is not compressed, since weights do not shrink.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from epctx.files import outputs
from epctx.files.atomic import replacing
from epctx.files.digest import HashingWriter
from epctx.files.outputs import OutputFile
from epctx.lockfile.types import LockedFile

_CHUNK = 1 << 20


class _Sink:
    """A file that is hashed while tarfile writes it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.writer = HashingWriter(stream)

    def write(self, data: bytes) -> int:
        return self.writer.write(data)

    def tell(self) -> int:
        return self.writer.size


class _Source:
    """A file that is hashed while it is read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hasher = hashlib.sha256()

    def read(self, size: int = _CHUNK) -> bytes:
        data = self._stream.read(size)
        self._hasher.update(data)
        return data

    @property
    def sha256(self) -> str:
        return self._hasher.hexdigest()


def write(path: Path, root: Path, files: Mapping[str, LockedFile]) -> OutputFile:
    """Write an archive atomically.

    Args:
        path: the archive.
        root: folder of `files`; its name is the first part of their paths in the archive.
        files: files to add, by path from `root`, with `/`; each must have its size and SHA-256.

    Raises:
        StorageError: the disk refuses, or a file differs from the one that was built.
    """
    with outputs.writing(path), replacing(path) as stream:
        sink = _Sink(stream)
        # tarfile only writes to the file; its type hint also wants `read` and `seek`.
        with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
            for folder in _folders(root.name, files):
                archive.addfile(_of_folder(folder))
            for name, file in sorted(files.items()):
                _add(archive, root, name, file)
    writer = sink.writer
    return OutputFile(name=path.name, size=writer.size, sha256=writer.sha256, blake3=writer.blake3)


def fault(
    path: Path, root: str, files: Mapping[str, LockedFile], optional: Collection[str]
) -> str | None:
    """Return the first difference of an archive from the one that `write` would make; None if it
    has the same bytes.

    Nothing is unpacked, and no header is trusted: each is compared with the expected one.

    Args:
        root: name of the folder of the files.
        files: as in `write`.
        optional: folders, by path from `root`, that may be missing as a whole.

    Raises:
        OSError: the archive cannot be read.
    """
    expected = dict(files)
    with path.open("rb") as stream:
        for folder in _folders(root, files):
            inner = folder.removeprefix(f"{root}/")
            if not _goes_on(stream, _bytes(_of_folder(folder))):
                if inner not in optional:
                    return f"has something else where {folder}/ should be"
                expected = {
                    n: file for n, file in expected.items() if not n.startswith(f"{inner}/")
                }
        for name, file in sorted(expected.items()):
            if not _goes_on(stream, _bytes(_of_file(f"{root}/{name}", file))):
                return f"has something else where {name} should be"
            if _hash(stream, file.size) != file.sha256:
                return f"has another {name}"
            if not _goes_on(stream, bytes(-file.size % tarfile.BLOCKSIZE)):
                return f"has extra bytes after {name}"
        end = stream.tell() + 2 * tarfile.BLOCKSIZE
        end += -end % tarfile.RECORDSIZE
        if not _goes_on(stream, bytes(end - stream.tell())) or stream.read(1):
            return "has extra bytes after its last file"
    return None


def _goes_on(stream: BinaryIO, expected: bytes) -> bool:
    """Consume the expected bytes if they come next; tell whether they did."""
    place = stream.tell()
    if stream.read(len(expected)) == expected:
        return True
    stream.seek(place)
    return False


def _hash(stream: BinaryIO, size: int) -> str:
    hasher = hashlib.sha256()
    while size and (data := stream.read(min(size, _CHUNK))):
        hasher.update(data)
        size -= len(data)
    return hasher.hexdigest()


def _bytes(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, tarfile.ENCODING, "surrogateescape")


def _folders(root: str, files: Mapping[str, LockedFile]) -> list[str]:
    parents = {f"{root}/{parent.as_posix()}" for name in files for parent in _parents(name)}
    return sorted({root, *parents})


def _of_folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info


def _of_file(name: str, file: LockedFile) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = file.size, 0o644
    return info


def _parents(name: str) -> list[PurePosixPath]:
    return [parent for parent in PurePosixPath(name).parents if parent != PurePosixPath(".")]


def _add(archive: tarfile.TarFile, root: Path, name: str, file: LockedFile) -> None:
    info = _of_file(f"{root.name}/{name}", file)
    path = root / name
    try:
        with path.open("rb") as stream:
            source = _Source(stream)
            archive.addfile(info, source)
            more = stream.read(1)
    except OSError as error:
        if error.errno is not None and path.exists():
            raise
        raise outputs.changed(path) from error  # the file is gone, or too short
    if more or source.sha256 != file.sha256:
        raise outputs.changed(path)
