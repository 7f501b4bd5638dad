"""Contents of the cache: objects by their BLAKE3, and small records by name.

Objects and records are written to a temporary folder of the process, moved into place, and checked
when they are read. Corrupt ones go to the quarantine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Literal, TypeVar

import filelock
import msgspec
from msgspec import Struct

from epctx import codec, limits
from epctx.cache.location import Location, refused, refusing
from epctx.error_codes import Code
from epctx.errors import StorageError
from epctx.files import copying, digest, open_flags
from epctx.files.digest import Digest
from epctx.files.entries import Irregular, entries, open_entry

_LOCK = ".lock"


class Temporary:
    """A folder of this process on the cache's file system, made at first use. Thread-safe.

    An OS lock shows other processes that this process is alive. The system releases the lock even
    if the process is killed; then the next build removes the folder. Otherwise the folder is
    removed by `close`, with the object, or at the end of the process.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._parent = location.root / "temporary"
        self._guard = threading.Lock()
        self._numbers = itertools.count()
        self._folder: Path | None = None
        self._remove: Callable[[], object] = lambda: None

    def path(self) -> Path:
        """Return an unused path for a new file, which `move_into_place` then moves to its place."""
        with self._guard:
            if self._folder is None:
                with refusing(self._parent):
                    self._open()
            assert self._folder is not None
            return self._folder / str(next(self._numbers))

    def close(self) -> None:
        """Remove the folder; the next `path` makes it again."""
        with self._guard:
            self._remove()
            self._folder = None

    def _open(self) -> None:
        self._location.make()
        self._parent.mkdir(exist_ok=True)
        sweep(self._parent)
        folder = self._parent / uuid.uuid4().hex
        lock = filelock.FileLock(str(folder) + _LOCK, thread_local=False)
        lock.acquire()
        folder.mkdir()
        self._folder, self._remove = folder, weakref.finalize(self, _remove, folder, lock)


def _remove(folder: Path, lock: filelock.BaseFileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _release(lock)


def sweep(parent: Path) -> None:
    """Remove the temporary folders of processes that have ended.

    Raises:
        StorageError: the cache cannot be read.
    """
    with refusing(parent):
        entries = list(parent.glob(f"*{_LOCK}"))
    for entry in entries:
        lock = filelock.FileLock(str(entry), thread_local=False)
        with contextlib.suppress(filelock.Timeout, OSError):
            lock.acquire(timeout=0)
            shutil.rmtree(entry.with_suffix(""), ignore_errors=True)
            _release(lock)


def _release(lock: filelock.BaseFileLock) -> None:
    """Release a lock that is not needed any more, and remove its file."""
    path = Path(lock.lock_file)
    if sys.platform == "win32":
        lock.release()  # Windows cannot remove an open file; no name is used twice
        path.unlink(missing_ok=True)
    else:
        path.unlink(missing_ok=True)
        lock.release()


def move_into_place(temporary: Path, place: Path) -> None:
    """Move a complete file to its place, and replace the file there."""
    try:
        try:
            temporary.replace(place)
        except FileNotFoundError:
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(place)
        except IsADirectoryError:  # epctx never makes a folder there
            place.rename(temporary.with_name(f"{temporary.name}.was"))
            temporary.replace(place)
    except PermissionError as error:
        # Windows: somebody reads the file there, which is the same or equivalent.
        if sys.platform != "win32" or not place.exists():
            raise refused(place, error) from error
        temporary.unlink(missing_ok=True)
    except OSError as error:
        raise refused(place, error) from error


R = TypeVar("R")

Notice = Callable[[str], None]
"""Receives one clause about each corrupt or unreadable file; called from any thread."""


class Quarantine(Struct, frozen=True, kw_only=True):
    """Sets aside untrustworthy files. Never raises; readers treat a quarantined file as missing."""

    location: Location
    notice: Notice

    @property
    def folder(self) -> Path:
        """Folder of the quarantine."""
        return self.location.root / "quarantine"

    def take(self, path: Path, status: os.stat_result | None, why: str) -> None:
        """Set a file aside, unless it was replaced since its `status` was taken; report `why`."""
        name = path.relative_to(self.location.root).as_posix()
        if self.location.readonly:
            self.notice(f"{name} {why}; it is not used, and stays, since the cache is read-only")
            return
        with contextlib.suppress(OSError):
            # Another process may have replaced the file meanwhile; the new file is good.
            if status is None or os.path.samestat(status, path.lstat()):
                self.folder.mkdir(exist_ok=True)
                path.replace(
                    self.folder / f"{path.parent.parent.name}-{path.name}-{uuid.uuid4().hex[:8]}"
                )
        self.notice(f"{name} {why}; set aside, it will be made again")

    def read(self, path: Path, read: Callable[[FileIO], R]) -> tuple[os.stat_result, R] | None:
        """Return a file's status and the result of `read`; None if no file can be read.

        An entry that is not a regular file is set aside. A file that cannot be read, for example
        because it belongs to another user, is reported.
        """
        try:
            with open_entry(path) as stream:
                return os.fstat(stream.fileno()), read(stream)
        except FileNotFoundError:
            pass
        except Irregular as error:
            self.take(path, None, error.reason)
        except OSError as error:
            name = path.relative_to(self.location.root).as_posix()
            self.notice(f"{name} cannot be read ({error.strerror}) and is not used")
        return None


_READ_ONLY = 0o444


class Objects(Struct, frozen=True, kw_only=True):
    """The objects of a cache. Thread- and process-safe."""

    location: Location
    temporary: Temporary
    quarantine: Quarantine

    def path(self, content: Digest) -> Path:
        """Return the place of the object with this content."""
        return self.location.root / "objects" / content.hex[:2] / content.hex

    def adopt(self, source: Path, *, content: Digest, size: int) -> None:
        """Copy a file into the cache; its BLAKE3 was taken when it was written.

        The file is not hashed again: a change since then is detected when the object is read.
        Nothing happens in a read-only cache, or if an object of this digest and size exists.

        Raises:
            StorageError: the cache cannot be written, or the file is not `size` bytes long.
        """
        if self.location.readonly or self.holds(content, size):
            return
        temporary = self.temporary.path()
        with refusing(temporary):
            copying.copy(source, temporary)
            if temporary.stat().st_size != size:
                temporary.unlink()
                raise StorageError(
                    f"does not have {size} bytes: another program writes to it",
                    file=str(source),
                    remedy="run the command again when nothing else uses the folder",
                    code=Code.CACHE_CORRUPT,
                )
        self.put_in_place(temporary, content)

    def put_in_place(self, temporary: Path, content: Digest) -> None:
        """Move a complete file, whose digest was checked, to its place.

        Raises:
            StorageError: the cache cannot be written.
        """
        if sys.platform != "win32":  # on Windows a read-only file cannot be removed by gc
            with refusing(temporary):
                temporary.chmod(temporary.stat().st_mode & _READ_ONLY)
        move_into_place(temporary, self.path(content))

    def fetch(self, content: Digest, *, size: int, target: Path) -> bool:
        """Copy an object to the new file `target`, and check its digest.

        Return False, without a file `target`, if the object does not exist or was corrupt. A
        corrupt object is set aside.

        Raises:
            StorageError: `target` cannot be written.
        """
        place = self.path(content)

        def copy(file: FileIO) -> bool:
            right = os.fstat(file.fileno()).st_size == size
            with StorageError.if_refused(
                "cannot be copied out of the cache",
                file=str(target),
                remedy="free some space or choose another folder with --out",
            ):
                return right and copying.copy_hashed(file, target) == content

        read = self.quarantine.read(place, copy)
        if read is None:
            return False
        status, whole = read
        if not whole:
            target.unlink(missing_ok=True)
            self.quarantine.take(place, status, "is corrupt")
        return whole

    def check(self, content: Digest) -> bool:
        """Return whether an object exists and has its digest; a corrupt one is set aside."""
        place = self.path(content)
        read = self.quarantine.read(place, digest.of_stream)
        if read is None:
            return False
        status, actual = read
        if actual != content:
            self.quarantine.take(place, status, "is corrupt")
        return actual == content

    def all(self) -> Iterator[tuple[Digest, os.stat_result]]:
        """Yield the digest and the status of every object."""
        folder = self.location.root / "objects"
        if not folder.is_dir():
            return
        for entry in entries(folder):
            with contextlib.suppress(FileNotFoundError):
                yield Digest("blake3", entry.name), entry.lstat()

    def holds(self, content: Digest, size: int) -> bool:
        """Return whether an object of this digest and size exists; its content is not read."""
        try:
            status = self.path(content).lstat()
            return stat.S_ISREG(status.st_mode) and status.st_size == size
        except OSError:
            return False


T = TypeVar("T")
Kind = Literal["actions", "digests", "groups", "pace"]
KINDS: tuple[Kind, ...] = ("actions", "digests", "groups", "pace")
_HOUR = 3600
_SUM = 64
"""Length of the BLAKE3 in hex at the start of a record; a line break and JSON follow."""


class Records(Struct, frozen=True, kw_only=True):
    """The records of a cache, by kind and name (a digest in hex). Thread- and process-safe."""

    location: Location
    temporary: Temporary
    quarantine: Quarantine

    def path(self, kind: Kind, name: str) -> Path:
        """Return the place of a record."""
        return self.location.root / kind / name[:2] / name

    def read(self, kind: Kind, name: str, form: type[T], *, used: bool = False) -> T | None:
        """Return a record; None if it does not exist, is corrupt, or has another form.

        A corrupt record is reported and set aside. Another version of epctx may have written a
        record of another form.

        Args:
            used: update the record's time of last use, at most once an hour. gc removes records
                that were not used for long.
        """
        path = self.path(kind, name)
        read = self.quarantine.read(path, lambda file: file.read(limits.RECORD_BYTES.value))
        if read is None:
            return None
        status, content = read
        payload = content[_SUM + 1 :]
        if content[:_SUM] != _sum(kind, name, payload):
            self.quarantine.take(path, status, "is corrupt")
            return None
        if used and not self.location.readonly and status.st_mtime < time.time() - _HOUR:
            with contextlib.suppress(OSError):
                os.utime(path)
        try:
            return codec.decode(payload, form)
        except msgspec.MsgspecError:
            return None

    def refuse(self, kind: Kind, name: str, why: str) -> None:
        """Set aside a record with the right digest but impossible content."""
        self.quarantine.take(self.path(kind, name), None, why)

    def write(self, kind: Kind, name: str, value: object) -> None:
        """Write a record completely or not at all; do nothing in a read-only cache."""
        if self.location.readonly:
            return
        payload = codec.encode(value)
        temporary = self.temporary.path()
        with refusing(temporary):
            descriptor = os.open(temporary, open_flags.NEW, self.location.record_mode)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(_sum(kind, name, payload) + b"\n" + payload)
        move_into_place(temporary, self.path(kind, name))

    def names(self, kind: Kind) -> Iterator[str]:
        """Yield the names of all records of a kind."""
        yield from (entry.name for entry in entries(self.location.root / kind))


def _sum(kind: Kind, name: str, payload: bytes) -> bytes:
    # The digest covers kind and name, so a record that was moved or renamed is corrupt.
    return digest.of_chunks((f"{kind}/{name}\n".encode(), payload)).hex.encode()
