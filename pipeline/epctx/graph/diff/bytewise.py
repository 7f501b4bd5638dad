"""Where two runs of bytes differ, without holding either in memory."""

from __future__ import annotations

from collections.abc import Iterator

_CHUNK = 1 << 20


def first(old: memoryview, new: memoryview) -> int | None:
    """Offset of the first byte that differs; the shorter length if one begins with the other."""
    for start in _differing(old, new):
        low, high = start, min(start + _CHUNK, len(old), len(new))
        while high - low > 1:  # the first difference is in [low, high)
            middle = (low + high) // 2
            if old[low:middle] == new[low:middle]:
                low = middle
            else:
                high = middle
        return low
    return None if len(old) == len(new) else min(len(old), len(new))


def count(old: memoryview, new: memoryview) -> int:
    """How many bytes differ, those that only the longer one has included."""
    import numpy as np

    found = abs(len(old) - len(new))
    for start in _differing(old, new):
        stop = min(start + _CHUNK, len(old), len(new))
        one, other = (np.frombuffer(side[start:stop], np.uint8) for side in (old, new))
        found += int(np.count_nonzero(one != other))
    return found


def words(old: memoryview, new: memoryview) -> str | None:
    """The first difference in words; None: there is none."""
    offset = first(old, new)
    if offset is None:
        return None
    if len(old) == len(new):
        many = count(old, new)
        return f"byte {offset:,} of {len(old):,} is the first of {many:,} that differ"
    return f"{len(old):,} bytes are {len(new):,}, the first difference is at byte {offset:,}"


def _differing(old: memoryview, new: memoryview) -> Iterator[int]:
    """Where chunks begin, of the length that both have, that are not the same."""
    for start in range(0, min(len(old), len(new)), _CHUNK):
        stop = min(start + _CHUNK, len(old), len(new))
        if old[start:stop] != new[start:stop]:
            yield start
