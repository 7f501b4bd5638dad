"""OS locks of the cache: one that users share and gc takes alone, and one for each action.

They are the system's own, so they end with the process that holds them, however it ends.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from epctx.cache.location import Location, refused, refusing
from epctx.files import open_flags
from epctx.files.entries import Irregular

if TYPE_CHECKING:
    import filelock

Waiting = Callable[[], None]
"""Called again and again, about every second, while somebody else holds a lock; what it raises ends
the wait."""
_STEP = 1.0


@contextmanager
def shared(location: Location, waiting: Waiting) -> Iterator[None]:
    """Use the cache beside others, and not beside gc."""
    with _users(location) as lock:
        _wait(lambda timeout: lock.acquire_read(timeout=timeout), location, waiting)
        yield


@contextmanager
def alone(location: Location, waiting: Waiting) -> Iterator[None]:
    """Use the cache alone."""
    with _users(location) as lock:
        _wait(lambda timeout: lock.acquire_write(timeout=timeout), location, waiting)
        yield


@contextmanager
def of_action(location: Location, name: str, waiting: Waiting) -> Iterator[None]:
    """Carry out an action while no other process, and no other thread, carries out the same."""
    import filelock

    folder = location.root / "locks"
    location.make()
    with refusing(folder):
        folder.mkdir(exist_ok=True)
    lock = filelock.FileLock(str(folder / f"{name}.lock"), thread_local=False)
    _wait(lambda timeout: lock.acquire(timeout=timeout), location, waiting)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _users(location: Location) -> Iterator[filelock.ReadWriteLock]:
    import sqlite3

    import filelock

    location.make()
    path = location.root / "users.db"
    with refusing(path):
        # Of an SQLite database only the locks are used, so it is empty; whatever else wrote to it.
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
    """Empty a file, if it is one: what a link names is somebody else's. Raises OSError."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise Irregular(path)
    if status.st_size:
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | open_flags.NO_LINK)
        os.close(descriptor)


def _wait(acquire: Callable[[float], object], location: Location, waiting: Waiting) -> None:
    import sqlite3

    import filelock

    timeout = 0.0
    while True:
        try:
            acquire(timeout)
            return
        except filelock.Timeout:
            waiting()
            timeout = _STEP
        except (OSError, sqlite3.Error) as error:
            raise refused(location.root, error) from error
