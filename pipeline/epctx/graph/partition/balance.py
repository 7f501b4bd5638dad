"""Cut a row of blocks into runs: the largest run small, then the tolls of the cuts few.

A block holds items, each with a size. A run holds the items of its blocks, each once, so the size
of a run never shrinks when the run grows at either end. Every search here relies on that.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from msgspec import Struct

SLACK: Final = 20
"""A run may exceed the smallest possible largest run by one in so many (5 %) to save tolls."""

Blocks = Sequence[Mapping[Hashable, int]]
"""For each block its items with their sizes."""


class Balance(Struct, frozen=True, kw_only=True):
    """Where a row of blocks is cut.

    Attributes:
        cuts: blocks that begin a run, ascending; the first run begins at 0, which is not listed.
        choices: for each cut, how many places it could have while the other cuts stay.
    """

    cuts: tuple[int, ...]
    choices: tuple[int, ...]


def size(blocks: Blocks) -> int:
    """Return the size of one run of all these blocks."""
    items: dict[Hashable, int] = {}
    for block in blocks:
        items.update(block)
    return sum(items.values())


def fewest(blocks: Blocks, limit: int) -> int | None:
    """Return the fewest runs of at most `limit`; None if one block alone exceeds it."""
    runs, held, total = 1, set[Hashable](), 0
    for block in blocks:
        added = sum(item for key, item in block.items() if key not in held)
        if total + added > limit:
            runs, held, total = runs + 1, set(), 0
            added = sum(block.values())
            if added > limit:
                return None
        held.update(block)
        total += added
    return runs


def balance(
    blocks: Blocks, tolls: Sequence[int], count: int, *, ceiling: int | None = None
) -> Balance:
    """Cut `blocks` into exactly `count` runs.

    The largest run is within `SLACK` of the smallest possible one, and the sum of tolls is minimal.
    Among equal sums the smaller largest run wins, then the cuts that come first.

    Args:
        blocks: at least `count` of them.
        tolls: for each block the toll of a cut before it; the first is not used.
        count: how many runs; one at least.
        ceiling: the limit of a run, which `count` runs can keep to; None if there is none.
    """
    best = _smallest_limit(blocks, count)
    relaxed = best + best // SLACK
    limit = relaxed if ceiling is None else min(relaxed, ceiling)
    starts = _earliest_starts(blocks, limit)
    cuts = _cheapest(starts, tolls, count)
    level = _cheapest(_earliest_starts(blocks, best), tolls, count)
    if _sum(tolls, level) == _sum(tolls, cuts):
        cuts = level
    ends = (0, *cuts, len(blocks))
    choices = (
        min(bisect_right(starts, before) - 1, after - 1) - max(starts[after], before + 1) + 1
        for before, after in zip(ends, ends[2:], strict=False)
    )
    return Balance(cuts=cuts, choices=tuple(choices))


def _sum(tolls: Sequence[int], cuts: Sequence[int]) -> int:
    return sum(tolls[cut] for cut in cuts)


def _smallest_limit(blocks: Blocks, count: int) -> int:
    """Return the smallest limit that `count` runs can keep to, by binary search.

    Fewer runs are enough: to cut a run again makes no run larger.
    """
    low, high = max(sum(block.values()) for block in blocks), size(blocks)
    while low < high:
        middle = (low + high) // 2
        if (fewest(blocks, middle) or math.inf) <= count:
            high = middle
        else:
            low = middle + 1
    return low


def _earliest_starts(blocks: Blocks, limit: int) -> list[int]:
    """Return for each end (a number of blocks) the first block of the longest run to it."""
    starts, start, total = [0], 0, 0
    held: Counter[Hashable] = Counter()
    for block in blocks:
        for key, item in block.items():
            total += 0 if held[key] else item
            held[key] += 1
        while total > limit:
            for key, item in blocks[start].items():
                held[key] -= 1
                total -= 0 if held[key] else item
            start += 1
        starts.append(start)
    return starts


def _cheapest(starts: Sequence[int], tolls: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the `count - 1` cuts with the smallest sum of tolls.

    Dynamic programming over (runs, blocks), with a sliding-window minimum over the last cut.
    """
    total = len(starts) - 1
    sums: list[float] = [math.inf] + [math.inf if start else 0 for start in starts[1:]]
    history = []
    for _ in range(count - 1):
        window: deque[tuple[float, int]] = deque()
        longer, origin = [math.inf], [0]
        for end in range(1, total + 1):
            cut = end - 1
            if sums[cut] < math.inf:
                toll = sums[cut] + tolls[cut]
                while window and window[-1][0] > toll:
                    window.pop()
                window.append((toll, cut))
            while window and window[0][1] < starts[end]:
                window.popleft()
            toll, cut = window[0] if window else (math.inf, 0)
            longer.append(toll)
            origin.append(cut)
        history.append(origin)
        sums = longer
    cuts: list[int] = []
    for origin in reversed(history):
        cuts.append(origin[cuts[-1] if cuts else total])
    return tuple(reversed(cuts))
