"""Locks between processes: another process holds them while this one tries."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epctx.cache import locks
from epctx.cache.location import Location
from epctx.cache.store import Cache
from epctx.errors import StorageError
from epctx.files.digest import of_bytes

KEY = of_bytes(b"key")
OTHER = of_bytes(b"other")
HOLDER = """
import sys
from pathlib import Path
from epctx.cache import locks
from epctx.cache.location import Location

def fail():
    sys.exit("busy")

location = Location(folder=Path(sys.argv[1]))
held = getattr(locks, sys.argv[2])(location, *sys.argv[3:], fail)
with held:
    print("held", flush=True)
    sys.stdin.read()
"""


class Busy(Exception):
    """Somebody else holds the lock."""


def refuse() -> None:
    raise Busy


@contextmanager
def elsewhere(location: Location, *lock: str) -> Iterator[subprocess.Popen[str]]:
    """Another process holds a lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(location.folder), *lock],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def can(location: Location, lock: str, *args: str) -> bool:
    try:
        with getattr(locks, lock)(location, *args, refuse):
            return True
    except Busy:
        return False


def test_builds_share_and_gc_is_alone(location: Location) -> None:
    with elsewhere(location, "shared"):
        assert can(location, "shared")
        assert not can(location, "alone")
    assert can(location, "alone")
    with elsewhere(location, "alone"):
        assert not can(location, "shared")
        assert not can(location, "alone")


def test_an_action_is_carried_out_by_one_process(location: Location) -> None:
    with elsewhere(location, "of_action", KEY.hex):
        assert not can(location, "of_action", KEY.hex)
        assert can(location, "of_action", OTHER.hex)
    assert can(location, "of_action", KEY.hex)


def test_an_action_is_carried_out_by_one_thread(location: Location) -> None:
    with locks.of_action(location, KEY.hex, refuse):
        assert not can(location, "of_action", KEY.hex)


@pytest.mark.parametrize("lock", ["shared", "alone", "of_action"])
def test_a_lock_ends_with_its_process(location: Location, lock: str) -> None:
    args = [KEY.hex] if lock == "of_action" else []
    with elsewhere(location, lock, *args) as process:
        process.kill()
        process.wait()
        assert can(location, "alone")
        assert can(location, lock, *args)


def test_who_waits_is_asked_each_second_and_gets_it_then(location: Location) -> None:
    asked = []
    with elsewhere(location, "of_action", KEY.hex) as process:

        def waiting() -> None:
            asked.append(1)
            if len(asked) == 2:
                process.kill()

        with locks.of_action(location, KEY.hex, waiting):
            assert len(asked) >= 2


def test_garbage_in_the_lock_file_does_no_harm(location: Location) -> None:
    location.make()
    (location.root / "users.db").write_bytes(b"garbage" * 1000)
    assert can(location, "shared")
    assert can(location, "alone")


def test_a_cache_that_cannot_be_locked(location: Location) -> None:
    location.make()
    (location.root / "locks").write_text("a file")
    with pytest.raises(StorageError, match="cannot be written"):
        can(location, "of_action", KEY.hex)
    (location.root / "users.db").mkdir()
    with pytest.raises(StorageError, match="cannot be written"):
        can(location, "shared")


def test_a_read_only_cache_is_not_locked(location: Location, tmp_path: Path) -> None:
    reader = Cache(Location(folder=tmp_path / "nowhere", readonly=True), lambda text: None)
    with reader.shared(refuse), reader.alone_on(KEY, refuse), reader.alone_on(KEY, refuse):
        pass
    assert not (tmp_path / "nowhere").exists()


def test_a_disk_that_breaks_under_the_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite, which the locks are of, has errors of its own.

    A mock, as a disk breaks there at one call of SQLite's only.
    """

    def breaks(*_: object, **__: object) -> object:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("filelock.ReadWriteLock", breaks)
    with (
        pytest.raises(StorageError, match=r"users\.db: the cache cannot be written: disk I/O"),
        locks.shared(Location(folder=tmp_path), lambda: None),
    ):
        pass
