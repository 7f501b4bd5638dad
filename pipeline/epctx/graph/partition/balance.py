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
"""A run may exceed the smallest possible largest run by one in so many (5 %) to save tolls, and is
not smaller than that part of it, unless there are too few blocks for that."""

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

    The largest run is within `SLACK` of the smallest possible one, no run is next to nothing, and
    the sum of tolls is minimal. Among equal sums the smaller largest run wins, then the cuts that
    come first.

    Args:
        blocks: at least `count` of them.
        tolls: for each block the toll of a cut before it; the first is not used.
        count: how many runs; one at least.
        ceiling: the limit of a run, which `count` runs can keep to.

    Returns:
        The blocks that begin a run, ascending, without the first.
    """
    sizes = [sum(block.values()) for block in blocks]
    sought = range(max(sizes), sum(sizes))
    # Fewer runs are enough: to cut a run again makes no run larger.
    best = sought.start + bisect_left(
        sought, True, key=lambda limit: (fewest(blocks, limit) or 0) <= count
    )
    limits = best, min(best + best // SLACK, ceiling)
    found = [_cheapest(blocks, tolls, count, best // SLACK, limit) for limit in limits]
    if not any(found):
        found = [_cheapest(blocks, tolls, count, 0, limit) for limit in limits]
    return min(filter(None, found), key=lambda cuts: sum(tolls[cut] for cut in cuts), default=[])


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


def _cheapest(
    blocks: Blocks, tolls: Sequence[int], count: int, least: float, most: float
) -> list[int]:
    """Return the `count - 1` cuts with the smallest sum of tolls, each run from `least` to `most`;
    empty if there are none.

    Dynamic programming over (runs, ends), with a sliding-window minimum over the last cut.
    """
    starts = _earliest_starts(blocks, most)
    too_late = _earliest_starts(blocks, least - 1)  # a run that starts here or later is too small
    sums = [
        math.inf if start or not late else 0 for start, late in zip(starts, too_late, strict=True)
    ]
    last_cuts: list[list[int]] = []
    for _ in range(count - 1):
        window: deque[tuple[float, int]] = deque()
        longer, last_cut, known = [math.inf], [0], 0
        for end in range(1, len(starts)):
            for cut in range(known, too_late[end]):
                toll = sums[cut] + tolls[cut]
                while window and window[-1][0] > toll:
                    window.pop()
                window.append((toll, cut))
            known = too_late[end]
            while window and window[0][1] < starts[end]:
                window.popleft()
            toll, cut = window[0] if window else (math.inf, 0)
            longer.append(toll)
            last_cut.append(cut)
        last_cuts.append(last_cut)
        sums = longer
    if sums[-1] == math.inf:
        return []
    end, cuts = len(starts) - 1, []
    for last_cut in reversed(last_cuts):
        end = last_cut[end]
        cuts.append(end)
    return cuts[::-1]
