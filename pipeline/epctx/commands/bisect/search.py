"""The searches: for the first wrong node, and for the nodes without which a model compiles.

`Search`: a node is the first wrong one where a value of it is beyond the tolerance and all that it
uses is within. Of what comes before a wrong node some are read at a time, evenly spread, and what
comes before a right one is believed to be right until nothing else is left: then it is read, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from epctx.commands.bisect.cutting import Layer

T = TypeVar("T")
_MOST: Final = 4
"""Culprits that `smallest` looks for one by one."""


@dataclass
class Search:
    """A search.

    Attributes:
        layers: of the model, in topological order.
        at_once: how many of them are read at a time.
        known: of values that were read, whether they are right.
    """

    layers: Sequence[Layer]
    at_once: int
    known: dict[str, bool] = field(default_factory=dict)

    @property
    def wrong(self) -> Layer | None:
        """The first layer that is known to be wrong."""
        return next((layer for layer in self.layers if self._right(layer) is False), None)

    def suspects(self) -> list[Layer]:
        """The layers before the wrong one of which nothing is known; none: it is the first."""
        wrong = self.wrong
        if wrong is None:
            return []
        before = self._before(wrong.parents)
        cleared = self._before(each.place for each in self.layers if self._right(each))
        unknown = [place for place in sorted(before) if self._right(self.layers[place]) is None]
        likely = [place for place in unknown if place not in cleared]
        left = likely or [place for place in unknown if place in wrong.parents]
        return [self.layers[place] for place in left]

    def values(self) -> tuple[str, ...]:
        """What is to be read next; nothing: the wrong layer is the first wrong one."""
        left, most = self.suspects(), self.at_once
        if len(left) > most:
            left = [left[(number + 1) * len(left) // (most + 1)] for number in range(most)]
        return tuple(value for layer in left for value in layer.values)

    def rounds(self) -> int:
        """How many readings are left, about: each leaves one stretch of those between them."""
        left, count = len(self.suspects()), 0
        while left:
            left, count = left // (self.at_once + 1), count + 1
        return count

    def _right(self, layer: Layer) -> bool | None:
        found = [self.known.get(value) for value in layer.values]
        return False if False in found else None if None in found else True

    def _before(self, places: Iterable[int]) -> set[int]:
        """These places and all before them."""
        found: set[int] = set()
        left = list(places)
        while left:
            place = left.pop()
            if place not in found:
                found.add(place)
                left.extend(self.layers[place].parents)
        return found


def smallest(
    items: Sequence[T], passes: Callable[[Sequence[T]], bool], kind: Callable[[T], object]
) -> list[T]:
    """Return the fewest items that must be left out; none if leaving out a few does not help.

    Each culprit takes about log2(n) + 1 trials. Of more than four all items of their kinds count.

    Args:
        items: in an order that keeps neighbours together; all of them left out pass.
        passes: whether a trial without these items succeeds.
        kind: of an item, by which several are left out together.
    """
    known = {(): False, tuple(items): True}

    def good(some: Iterable[T]) -> bool:
        chosen = set(some)
        out = tuple(item for item in items if item in chosen)
        if out not in known:
            known[out] = passes(out)
        return known[out]

    left = list(items)
    while len(left) > 1:  # if one item does it, each trial tells its half
        half = left[: len(left) // 2]
        left = half if good(half) else left[len(half) :]
    if good(left):
        return left
    kinds = {kind(item): item for item in items}
    if not any(good(set(items) - {one}) for one in list(kinds.values())[:_MOST]):
        return []  # whatever is left alone fails
    culprits: list[T] = []
    left = list(items)
    while not good(culprits) and len(culprits) < _MOST:
        low, high = 0, len(left)  # without the culprits and the first `high` it passes
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if good([*culprits, *left[:middle]]) else (middle, high)
        culprits.append(left[high - 1])
        left = left[: high - 1]
    if good(culprits):
        return culprits
    every = [item for item in items if kind(item) in set(map(kind, culprits))]
    return every if good(every) else []
