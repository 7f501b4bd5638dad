"""Many files hashed, or arrays compared, at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_Name = TypeVar("_Name")
_Result = TypeVar("_Result")
SMALL: Final = 1 << 18
"""Bytes that are hashed in the time that a thread takes to begin."""
_MOST: Final = 4
"""Cores beyond which a disk is what files wait for."""


def of_each(
    work: Callable[[_Name], _Result], names: Iterable[_Name], *, size: int | None = None
) -> dict[_Name, _Result]:
    """Call `work`, which hashes, copies or compares, for each name; return results in the order of
    names.

    hashlib, blake3 and numpy release the interpreter's lock: it is done on several cores.

    Args:
        size: of all that is read, in bytes, if known: few are hashed before a thread begins.

    Raises:
        Exception: what `work` raised of the first name for which it did.
    """
    listed = tuple(names)
    if size is not None and size <= SMALL:
        return {name: work(name) for name in listed}

    with ThreadPoolExecutor(max_workers=min(_MOST, os.cpu_count() or 1)) as threads:
        return dict(zip(listed, threads.map(work, listed), strict=True))
