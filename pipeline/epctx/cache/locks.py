"""OS locks of the cache: one that users share and gc takes exclusively, and one for each action.

The system releases a lock when the process that holds it ends, even if that is killed.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import FileIO
from pathlib import Path

import filelock

from epctx.cache.location import Location, refused, refusing
from epctx.files import open_flags
from epctx.files.entries import Irregular

if sys.platform != "win32":
    import fcntl

Waiting = Callable[[], None]
"""Called about every second while another process or thread holds a lock; an exception that it
raises ends the wait."""
_STEP = 1.0
_POLL = 0.05


@contextmanager
def shared(location: Location, waiting: Waiting) -> Iterator[None]:
    """Use the cache together with other users, but not while gc runs."""
    with _users(location) as lock:
        _wait(lambda timeout: lock.acquire_read(timeout=timeout), location.root, waiting)
        yield


@contextmanager
def alone(location: Location, waiting: Waiting) -> Iterator[None]:
    """Use the cache exclusively."""
    with _users(location) as lock:
        _wait(lambda timeout: lock.acquire_write(timeout=timeout), location.root, waiting)
        yield


@contextmanager
def of_action(location: Location, name: str, waiting: Waiting) -> Iterator[None]:
    """Keep all other processes and threads from carrying out the same action."""
    folder = location.root / "locks"
    if not folder.is_dir():
        location.make()
        with refusing(folder):
            folder.mkdir(exist_ok=True)
    with refusing(location.root):
        lock = _acquired(folder / f"{name}.lock", waiting)
    with lock:
        yield


if sys.platform == "win32":

    def _acquired(path: Path, waiting: Waiting) -> AbstractContextManager[object]:

        lock = filelock.FileLock(str(path), thread_local=False)
        _wait(lambda timeout: lock.acquire(timeout=timeout), path, waiting)
        return filelock.AcquireReturnProxy(lock)

else:

    def _acquired(path: Path, waiting: Waiting) -> AbstractContextManager[object]:
        """Take a lock as `filelock` does, but in an eighth of the time: a build needs hundreds."""
        stream = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | open_flags.NO_LINK, 0o666), "r+")
        try:
            _wait(lambda timeout: _lock(stream, timeout), path, waiting)
        except BaseException:
            stream.close()
            raise
        return stream

    def _lock(stream: FileIO, timeout: float) -> None:
        """Wait for a lock. Raises filelock.Timeout if the lock stays taken until the timeout."""
        end = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise filelock.Timeout(str(stream.name)) from None
            time.sleep(_POLL)


@contextmanager
def _users(location: Location) -> Iterator[filelock.ReadWriteLock]:

    location.make()
    path = location.root / "users.db"
    with refusing(path):
        # Only the locks of the SQLite database are used, so the file is emptied before its use.
        _empty(path)
        try:
            lock = filelock.ReadWriteLock(str(path), is_singleton=False)
        except sqlite3.Error as error:
            raise refused(path, error) from error
    try:
        yield lock
    finally:
        lock.close()


def _empty(path: Path) -> None:
    """Empty a regular file; never follow a link. Raises OSError, also for any other entry."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise Irregular(path)
    if status.st_size:
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | open_flags.NO_LINK)
        os.close(descriptor)


def _wait(acquire: Callable[[float], object], path: Path, waiting: Waiting) -> None:

    timeout = 0.0
    while True:
        try:
            acquire(timeout)
            return
        except filelock.Timeout:
            waiting()
            timeout = _STEP
        except (OSError, sqlite3.Error) as error:
            raise refused(path, error) from error
