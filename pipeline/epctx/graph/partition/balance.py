"""Cut a row of blocks into runs: the largest run small, then the tolls of the cuts few.

A block holds items, each with a size. A run holds the items of its blocks, each once, so the size
of a run never shrinks when the run grows at either end. Every search here relies on that.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

SLACK: Final = 20
"""A run may exceed the smallest possible largest run by one in so many (5 %) to save tolls."""

Blocks = Sequence[Mapping[Hashable, int]]
"""For each block its items with their sizes."""


def fewest(blocks: Blocks, limit: float) -> int | None:
    """Return the fewest runs of at most `limit`; None if one block alone exceeds it."""
    starts = _earliest_starts(blocks, limit)
    runs, end = 0, len(blocks)
    while end:
        if starts[end] == end:
            return None
        runs, end = runs + 1, starts[end]
    return runs


def balance(
    blocks: Blocks, tolls: Sequence[int], count: int, *, ceiling: float = math.inf
) -> list[int]:
    """Cut `blocks` into exactly `count` runs.

    The largest run is within `SLACK` of the smallest possible one, and the sum of tolls is minimal.
    Among equal sums the smaller largest run wins, then the cuts that come first.

    Args:
        blocks: at least `count` of them.
        tolls: for each block the toll of a cut before it; the first is not used.
        count: how many runs; one at least.
        ceiling: the limit of a run, which `count` runs can keep to.

    Returns:
        The blocks that begin a run, ascending, without the first.
    """
    sizes = [sum(block.values()) for block in blocks]
    limits = range(max(sizes), sum(sizes))
    # Fewer runs are enough: to cut a run again makes no run larger.
    best = limits.start + bisect_left(
        limits, True, key=lambda limit: (fewest(blocks, limit) or 0) <= count
    )
    starts = _earliest_starts(blocks, min(best + best // SLACK, ceiling))
    return min(
        _cheapest(_earliest_starts(blocks, best), tolls, count),
        _cheapest(starts, tolls, count),
        key=lambda cuts: sum(tolls[cut] for cut in cuts),
    )


def _earliest_starts(blocks: Blocks, limit: float) -> list[int]:
    """Return for each end (a number of blocks) the first block of the longest run to it.

    That is the end itself if the block before it exceeds the limit alone.
    """
    starts, start, total = [0], 0, 0
    held: Counter[Hashable] = Counter()
    for end, block in enumerate(blocks, 1):
        for key, item in block.items():
            total += 0 if held[key] else item
            held[key] += 1
        while total > limit and start < end:
            for key, item in blocks[start].items():
                held[key] -= 1
                total -= 0 if held[key] else item
            start += 1
        starts.append(start)
    return starts


def _cheapest(starts: Sequence[int], tolls: Sequence[int], count: int) -> list[int]:
    """Return the `count - 1` cuts with the smallest sum of tolls.

    Dynamic programming over (runs, ends), with a sliding-window minimum over the last cut.
    """
    sums: list[float] = [math.inf if start else 0 for start in starts]
    sums[0] = math.inf
    last_cuts: list[list[int]] = []
    for _ in range(count - 1):
        window: deque[tuple[float, int]] = deque()
        longer, last_cut = [math.inf], [0]
        for end in range(1, len(starts)):
            toll = sums[end - 1] + tolls[end - 1]
            while window and window[-1][0] > toll:
                window.pop()
            window.append((toll, end - 1))
            while window[0][1] < starts[end]:
                window.popleft()
            longer.append(window[0][0])
            last_cut.append(window[0][1])
        last_cuts.append(last_cut)
        sums = longer
    end, cuts = len(starts) - 1, []
    for last_cut in reversed(last_cuts):
        end = last_cut[end]
        cuts.append(end)
    return cuts[::-1]
