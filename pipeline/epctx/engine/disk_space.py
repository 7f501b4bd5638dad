"""Whether disks have room for what a build is about to write, before an EP works for it."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from epctx.errors import StorageError
from epctx.text import size_words

TOLD: Final = 1_000_000_000
"""Bytes from which on it is told what a session group needs."""
_LEAST: Final = 2
"""A context has half the bytes of its source or more: float32 becomes float16."""


class DiskSpace:
    """The disks of a build. Thread-safe.

    Args:
        folders: where each session group's files go: to the output, and to the cache.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = [_existing(folder) for folder in folders]
        self._lock = threading.Lock()
        self._promised: Counter[int] = Counter()

    @contextmanager
    def promised(self, size: int, tell: Callable[[str], None]) -> Iterator[None]:
        """Room for a session group while it is compiled, whatever else is.

        Args:
            size: bytes of its sources: about what it will have in each folder.
            tell: hears what is needed, if that is much.

        Raises:
            StorageError: a disk has less than half of it.
        """
        needed = Counter[int]()
        for folder in self._folders:
            needed[folder.stat().st_dev] += size
        with self._lock:
            for folder in self._folders:
                self._require(folder, needed[folder.stat().st_dev], tell)
            self._promised += needed
        try:
            yield
        finally:
            with self._lock:
                self._promised -= needed

    def _require(self, folder: Path, needed: int, tell: Callable[[str], None]) -> None:
        free = shutil.disk_usage(folder).free - self._promised[folder.stat().st_dev]
        words = (
            f"about {size_words(needed)} of disk are needed, {size_words(max(0, free))} are free"
        )
        if free < needed // _LEAST:
            raise StorageError(
                words,
                file=str(folder),
                remedy="free some space, choose another folder with --out or EPCTX_CACHE_DIR, or "
                "build with fewer --jobs",
            )
        if needed >= TOLD:
            tell(f"{words} in {folder}")


def _existing(folder: Path) -> Path:
    """It, or the nearest folder above it that is there."""
    return next(each for each in (folder, *folder.parents) if each.exists())
