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
        work: the folder in which EPs compile, on the disk of the output.
        stores: the folders that keep what was compiled, too: the cache, where there is one.
    """

    def __init__(self, work: Path, stores: Iterable[Path] = ()) -> None:
        self._work = _existing(work)
        self._stores = [_existing(folder) for folder in stores]
        self._lock = threading.Lock()
        self._promised: Counter[int] = Counter()

    @contextmanager
    def promised(
        self, size: int, tell: Callable[[str], None], *, copied: bool = False
    ) -> Iterator[None]:
        """Room for a session group while it is compiled, whatever else is.

        Args:
            size: bytes of its sources, each content once.
            tell: hears what is needed, if that is much.
            copied: its EP has a process of its own, and compiles copies of its weights there,
                which are gone before the cache is written.

        Raises:
            StorageError: a disk has less than the least that is needed.
        """
        copies = size if copied else 0
        least, most = self._needed(size // _LEAST, copies), self._needed(size, copies)
        disks = {folder.stat().st_dev: folder for folder in (*self._stores, self._work)}
        with self._lock:
            for disk, folder in disks.items():
                self._require(folder, least[disk], most[disk], tell)
            self._promised += most
        try:
            yield
        finally:
            with self._lock:
                self._promised -= most

    def _needed(self, written: int, copies: int) -> Counter[int]:
        """Bytes by disk, of what is there at one time: while it compiles, or in the end."""
        work = self._work.stat().st_dev
        stored = Counter({work: written})
        for folder in self._stores:
            stored[folder.stat().st_dev] += written
        return Counter({work: copies + written}) | stored

    def _require(self, folder: Path, least: int, most: int, tell: Callable[[str], None]) -> None:
        free = shutil.disk_usage(folder).free - self._promised[folder.stat().st_dev]
        words = (
            f"{size_words(least)} to {size_words(most)} of disk are needed, "
            f"{size_words(max(0, free))} are free"
        )
        if free < least:
            raise StorageError(
                words,
                file=str(folder),
                remedy="free some space, choose another folder with --out or EPCTX_CACHE_DIR, or "
                "build with fewer --jobs",
            )
        if most >= TOLD:
            tell(f"{words} in {folder}")


def _existing(folder: Path) -> Path:
    """It, or the nearest folder above it that is there."""
    return next(each for each in (folder, *folder.parents) if each.exists())
