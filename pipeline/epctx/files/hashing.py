"""Parallel work on many files or arrays, such as hashing and comparing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_Name = TypeVar("_Name")
_Result = TypeVar("_Result")
SMALL: Final = 1 << 18
"""Number of bytes that are hashed in the time that a thread takes to start."""
_MOST: Final = 4
"""Greatest number of threads; with more, the disk is the limit."""


def of_each(
    work: Callable[[_Name], _Result], names: Iterable[_Name], *, size: int | None = None
) -> dict[_Name, _Result]:
    """Call `work`, which hashes, copies or compares, for each name; return results in the order of
    names.

    hashlib, blake3 and numpy release the interpreter's lock, so several cores do the work.

    Args:
        size: number of bytes of all inputs, if known; for few bytes no threads are started.

    Raises:
        Exception: the exception of the first name for which `work` raised one.
    """
    listed = tuple(names)
    if size is not None and size <= SMALL:
        return {name: work(name) for name in listed}

    with ThreadPoolExecutor(max_workers=min(_MOST, os.cpu_count() or 1)) as threads:
        return dict(zip(listed, threads.map(work, listed), strict=True))
