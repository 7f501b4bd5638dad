"""Files that are not whole yet: in a folder of each process, swept when its process is gone."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
import threading
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path

import filelock

from epctx.cache.location import Location, refused, refusing

_LOCK = ".lock"


class Temporary:
    """A folder of this process on the cache's file system, made at first use. Thread-safe.

    An OS lock tells the others that its process lives; it goes when the process does, however that
    ends, and the next build removes what is left. Otherwise the folder goes with `close`, with the
    object, or at the end of the process.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._parent = location.root / "temporary"
        self._guard = threading.Lock()
        self._numbers = itertools.count()
        self._folder: Path | None = None
        self._remove: Callable[[], object] = lambda: None

    def path(self) -> Path:
        """A path that no file has, for one that is moved to its place with `settle`."""
        with self._guard:
            if self._folder is None:
                with refusing(self._parent):
                    self._open()
            assert self._folder is not None
            return self._folder / str(next(self._numbers))

    def close(self) -> None:
        """Remove the folder; it is made again if it is needed again."""
        with self._guard:
            self._remove()
            self._folder = None

    def _open(self) -> None:

        self._location.make()
        self._parent.mkdir(exist_ok=True)
        sweep(self._parent)
        folder = self._parent / uuid.uuid4().hex
        held = filelock.FileLock(str(folder) + _LOCK, thread_local=False)
        held.acquire()
        folder.mkdir()
        self._folder, self._remove = folder, weakref.finalize(self, _remove, folder, held)


def _remove(folder: Path, held: filelock.BaseFileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _release(held)


def sweep(parent: Path) -> None:
    """Remove the folders of processes that are gone.

    Raises:
        StorageError: the cache cannot be looked at.
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
    """Give up a lock whose file nobody will want again, and remove the file."""
    path = Path(lock.lock_file)
    if sys.platform == "win32":
        lock.release()  # an open file cannot be removed there, and a name is never used twice
        path.unlink(missing_ok=True)
    else:
        path.unlink(missing_ok=True)
        lock.release()


def settle(temporary: Path, place: Path) -> None:
    """Move a whole file to its place, over what is there."""
    try:
        try:
            temporary.replace(place)
        except FileNotFoundError:
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(place)
        except IsADirectoryError:  # which epctx never put there
            place.rename(temporary.with_name(f"{temporary.name}.was"))
            temporary.replace(place)
    except PermissionError as error:
        # Windows: somebody reads what is there, which is the same or as good.
        if sys.platform != "win32" or not place.exists():
            raise refused(place, error) from error
        temporary.unlink(missing_ok=True)
    except OSError as error:
        raise refused(place, error) from error
