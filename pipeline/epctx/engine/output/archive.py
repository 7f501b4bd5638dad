"""`dist/<name>.tar`: all that was published, the same bytes for the same files.

POSIX.1-2001 (pax), entries sorted, folders first: owner and group 0 without names, no times,
mode 0755 for folders and 0644 for files. Nothing is compressed: what weighs most does not shrink.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from epctx.files import outputs
from epctx.files.atomic import replacing
from epctx.files.digest import HashingWriter
from epctx.files.outputs import OutputFile

_CHUNK = 1 << 20


class _Sink:
    """A file that is hashed while it is written, as tarfile wants it."""

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


def write(path: Path, root: Path, files: Mapping[str, OutputFile]) -> OutputFile:
    """Write an archive, whole or not at all.

    Args:
        path: the archive.
        root: the folder that `files` are in; its name is the first part of theirs in the archive.
        files: what goes in, by path from `root`, with `/`; each is held to its size and SHA-256.

    Raises:
        StorageError: the disk refuses, or a file is not what was built.
    """
    with outputs.writing(path), replacing(path) as stream:
        sink = _Sink(stream)
        # tarfile only writes to it; the type it asks for reads and seeks, too.
        with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
            for folder in _folders(root.name, files):
                info = tarfile.TarInfo(folder)
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
            for name, file in sorted(files.items()):
                _add(archive, root, name, file)
    writer = sink.writer
    return OutputFile(name=path.name, size=writer.size, sha256=writer.sha256, blake3=writer.blake3)


def _folders(root: str, files: Mapping[str, OutputFile]) -> list[str]:
    parents = {f"{root}/{parent.as_posix()}" for name in files for parent in _parents(name)}
    return sorted({root, *parents})


def _parents(name: str) -> list[PurePosixPath]:
    return [parent for parent in PurePosixPath(name).parents if parent != PurePosixPath(".")]


def _add(archive: tarfile.TarFile, root: Path, name: str, file: OutputFile) -> None:
    info = tarfile.TarInfo(f"{root.name}/{name}")
    info.size, info.mode = file.size, 0o644
    path = root / name
    try:
        with path.open("rb") as stream:
            source = _Source(stream)
            archive.addfile(info, source)
            more = stream.read(1)
    except OSError as error:
        if error.errno is not None and path.exists():
            raise
        raise outputs.changed(path) from error  # it is gone, or too short
    if more or source.sha256 != file.sha256.hex:
        raise outputs.changed(path)
