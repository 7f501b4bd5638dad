"""Writes the lock of a build, where it says something else than the one that is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from epctx import lockfile
from epctx.engine.lock import writer
from epctx.engine.staleness import Memo
from epctx.errors import LockError
from epctx.files import atomic
from epctx.files.entries import open_entry
from epctx.lockfile import hosts
from epctx.lockfile.differences import between_locks
from epctx.lockfile.types import Lock


def keep(new: Lock, file: Path, memo: Memo, notice: Callable[[str], None]) -> None:
    """Write the lock, if it says something else: no build that gives the same is a change.

    Args:
        file: where it is, or is to be; what it says of other kinds of host stays.
        memo: remembers that it was written.
        notice: hears what is told to people.

    Raises:
        StorageError: the disk refuses.
    """
    if memo.has_lock(new, file):
        return
    content = lockfile.text(new).encode()
    try:
        with open_entry(file) as stream:
            same = stream.read() == content
        old = new if same else lockfile.read(file)
        before = hosts.on(old, hosts.kind(new))
        # One of an older epctx says nothing of packages: that is no difference, but a lack.
        lacks = (old.package is None) is not (new.package is None)
        if same or not (between_locks(before, new) or lacks):
            memo.note_lock(new, file)
            return
        both = hosts.added(old, writer.with_golden(new, before))
        _tell_hosts(old, both, notice)
        content = lockfile.text(both).encode()
    except (OSError, LockError):
        pass  # there is none, or what is there is replaced
    atomic.replace(file, content)


def _tell_hosts(old: Lock, new: Lock, notice: Callable[[str], None]) -> None:
    """Of other kinds of host: that the lock has them besides, or has them no more."""
    before, after = hosts.kinds(old), hosts.kinds(new)
    if len(after) > len(before):
        notice(f"the lock has an entry for this kind of host now, beside {len(before)}")
    if gone := [each for each in before if each and each not in after]:
        notice(
            f"the lock's outputs of {len(gone)} other kinds of host were made of something "
            "else: they are gone; build there again"
        )
