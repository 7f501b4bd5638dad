"""Where two runs of bytes differ, without holding either in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_CHUNK = 1 << 20


def first(old: memoryview, new: memoryview) -> int | None:
    """Offset of the first byte that differs; the shorter length if one begins with the other."""
    for start, differs in _differing(old, new):
        return start + int(differs.argmax())
    return None if len(old) == len(new) else min(len(old), len(new))


def count(old: memoryview, new: memoryview) -> int:
    """How many bytes differ, those that only the longer one has included."""
    return abs(len(old) - len(new)) + sum(int(each.sum()) for _, each in _differing(old, new))


def words(old: memoryview, new: memoryview) -> str | None:
    """The first difference in words; None: there is none."""
    offset = first(old, new)
    if offset is None:
        return None
    if len(old) == len(new):
        many = count(old, new)
        return f"byte {offset:,} of {len(old):,} is the first of {many:,} that differ"
    return f"{len(old):,} bytes are {len(new):,}, the first difference is at byte {offset:,}"


def _differing(old: memoryview, new: memoryview) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """Chunks, of the length that both have, that are not the same: their start, which bytes."""
    import numpy as np

    for start in range(0, min(len(old), len(new)), _CHUNK):
        stop = min(start + _CHUNK, len(old), len(new))
        if old[start:stop] != new[start:stop]:
            one, other = (np.frombuffer(side[start:stop], np.uint8) for side in (old, new))
            yield start, one != other
