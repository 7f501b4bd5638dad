"""What is below a folder that somebody else made: of any depth, no link followed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path


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
        inner = (e for e in entries if e.is_dir() and not e.is_symlink())
        waiting += reversed([entry for entry in inner if into(entry)])
