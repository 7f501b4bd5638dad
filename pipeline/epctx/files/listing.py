"""Listing of a folder that somebody else made: of any depth, no link followed."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

if sys.platform != "win32":
    import pwd


def below(folder: Path, *, into: Callable[[Path], bool] = lambda path: True) -> Iterator[Path]:
    """Every entry below a folder, each folder's own sorted; links are entries, not entered.

    Not by recursion, as pathlib and `os.walk` do it: a thousand folders in each other would end it.

    Args:
        into: whether to look into a folder; it is asked once of each, when that was yielded.

    Raises:
        OSError: a folder cannot be read; one too deep for a path is told so by the system.
    """
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        entries = sorted(place.iterdir())
        yield from entries
        waiting += reversed([entry for entry in entries if is_folder(entry) and into(entry)])


def is_folder(path: Path) -> bool:
    """Return whether there is a folder, and no link to one."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and not is_link(status)


def is_link(status: os.stat_result) -> bool:
    """A symbolic link, or on Windows any reparse point (a junction, a mount)."""
    attributes: int = getattr(status, "st_file_attributes", 0)
    return stat.S_ISLNK(status.st_mode) or bool(attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT)


if sys.platform == "win32":

    def other_owner(status: os.stat_result) -> str | None:
        """Nobody is known to own an entry on Windows."""
        return None

else:

    def other_owner(status: os.stat_result) -> str | None:
        """The user who owns an entry, if that is neither root nor this process's user."""
        if status.st_uid in (0, os.geteuid()):
            return None
        try:
            return pwd.getpwuid(status.st_uid).pw_name
        except KeyError:
            return f"number {status.st_uid}"
