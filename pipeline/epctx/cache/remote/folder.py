"""A shared folder as a store. Links are not followed; incomplete files have temporary names."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Final

from epctx.cache.remote.store import Stored, checked, holds, is_name
from epctx.files import copying
from epctx.files.entries import open_entry
from epctx.files.listing import is_link
from epctx.transfer.attempts import StoreError, exactly

_PIECE: Final = 1 << 20
_UNFINISHED: Final = ".unfinished-"
_ABANDONED: Final = 24 * 3600
_READABLE: Final = 0o444
_FOLDERS: Final = ("v1/objects", "v1/actions")


class FolderStore:
    """Files in a folder, which is made if it does not exist. Safe for many threads and processes.

    Users who may read the folder may read each file in it. System calls have no time limit here: if
    the server of a share disappears, the mount options decide how long they wait.
    """

    def __init__(self, url: str, folder: Path) -> None:
        """Initialize with an absolute path; nothing is read or made yet."""
        self._url = url
        self._folder = folder

    @property
    def url(self) -> str:
        """URL as the user gave it."""
        return self._url

    def read(self, name: str, most: int) -> bytes | None:
        """See `Store`."""
        with _telling(), contextlib.suppress(FileNotFoundError), self._open(name) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise StoreError(f"it has {size:,} bytes, more than the {most:,} allowed")
            return b"".join(exactly(_pieces(file), size))
        return None

    def stream(self, name: str, size: int) -> Iterator[bytes] | None:
        """See `Store`."""
        with _telling(), contextlib.suppress(FileNotFoundError):
            return _closing(self._open(name), size)
        return None

    def size(self, name: str) -> int | None:
        """See `Store`."""
        with _telling(), contextlib.suppress(FileNotFoundError), self._open(name) as file:
            return os.fstat(file.fileno()).st_size
        return None

    def write(self, name: str, content: bytes) -> None:
        """See `Store`."""
        if not holds(self, name, content):
            with self._putting(name) as unfinished:
                unfinished.write_bytes(content)

    def upload(self, name: str, source: Path) -> None:
        """See `Store`."""
        with _telling():
            size = source.stat().st_size
        if self.size(name) != size:
            with self._putting(name) as unfinished:
                copying.copy(source, unfinished)

    def list(self, prefix: str) -> Iterator[Stored]:
        """See `Store`."""
        folder = prefix.rpartition("/")[0]
        with _telling():
            for below in _FOLDERS:
                if below.startswith(folder):
                    yield from (each for each in self._in(below) if each.name.startswith(prefix))

    def delete(self, names: Iterable[str]) -> None:
        """See `Store`."""
        with _telling():
            for name in map(checked, names):
                self._path(name).unlink(missing_ok=True)
            for below in _FOLDERS:
                self._sweep(below)

    def _path(self, name: str) -> Path:
        """Return the path of a blob. Raises StoreError if a folder on the way is a link."""
        for below in ("v1", *_FOLDERS):
            with contextlib.suppress(FileNotFoundError):
                if is_link((self._folder / below).lstat()):
                    raise StoreError("it has a link in place of a folder", lasting=True)
        return self._folder / checked(name)

    def _open(self, name: str) -> FileIO:
        return open_entry(self._path(name))

    def _in(self, below: str) -> Iterator[Stored]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder / below) as entries:
            for each in entries:
                name = f"{below}/{each.name}"
                if is_name(name) and each.is_file(follow_symlinks=False):
                    try:
                        status = each.stat(follow_symlinks=False)
                    except FileNotFoundError:  # another process removed it
                        continue
                    yield Stored(name=name, size=status.st_size, modified=status.st_mtime)

    @contextlib.contextmanager
    def _putting(self, name: str) -> Iterator[Path]:
        """Give the path of a new file; when it is complete, rename it to the blob's name."""
        with _telling():
            place = self._path(name)
            self._folder.mkdir(parents=True, exist_ok=True)
            for below in ("v1", *_FOLDERS):
                self._make(self._folder / below)
            unfinished = place.with_name(f"{_UNFINISHED}{uuid.uuid4().hex}")
            try:
                yield unfinished
                if sys.platform != "win32":  # Windows cannot replace a read-only file
                    unfinished.chmod(self._folder.stat().st_mode & _READABLE)
                unfinished.replace(place)
            finally:
                unfinished.unlink(missing_ok=True)

    def _make(self, folder: Path) -> None:
        """Make a folder with the permissions of the store's folder."""
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(self._folder.stat().st_mode & 0o7777)

    def _sweep(self, below: str) -> None:
        """Remove unfinished files of killed processes after a day."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder / below) as entries:
            for each in entries:
                status = each.stat(follow_symlinks=False)
                if each.name.startswith(_UNFINISHED) and status.st_mtime < time.time() - _ABANDONED:
                    Path(each.path).unlink(missing_ok=True)


def _closing(file: FileIO, size: int) -> Iterator[bytes]:
    with _telling(), file:
        yield from exactly(_pieces(file), size)


def _pieces(file: FileIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Turn an OSError of the block into StoreError; FileNotFoundError passes."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StoreError(f"the system says: {reason}") from None
