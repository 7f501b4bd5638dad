"""Listing of an untrusted folder of any depth; no link is followed."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

if sys.platform != "win32":
    import pwd


def below(folder: Path, *, into: Callable[[Path], bool] = lambda path: True) -> Iterator[Path]:
    """Yield every entry below a folder, sorted within each folder; links are yielded, not entered.

    The listing is iterative: recursive ones, as in pathlib and `os.walk`, fail at a thousand nested
    folders.

    Args:
        into: returns whether to enter a folder; called once for each folder after it was yielded.

    Raises:
        OSError: a folder cannot be read, or its path is too long for the system.
    """
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        entries = sorted(place.iterdir())
        yield from entries
        waiting += reversed([entry for entry in entries if is_folder(entry) and into(entry)])


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder, and not a link to one."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and not is_link(status)


def is_link(status: os.stat_result) -> bool:
    """Return whether an entry is a symbolic link, or on Windows any reparse point (junction,
    mount).
    """
    attributes: int = getattr(status, "st_file_attributes", 0)
    return stat.S_ISLNK(status.st_mode) or bool(attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT)


if sys.platform == "win32":

    def other_owner(status: os.stat_result) -> str | None:
        """Return None: the owner is not checked on Windows."""
        return None

else:

    def other_owner(status: os.stat_result) -> str | None:
        """Return the user who owns an entry; None if that is root or this process's user."""
        if status.st_uid in (0, os.geteuid()):
            return None
        try:
            return pwd.getpwuid(status.st_uid).pw_name
        except KeyError:
            return f"number {status.st_uid}"
