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
_KINDS: Final = 4
"""Kinds of culprits after which `smallest` gives up."""


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
    items: Sequence[T], passes: Callable[[Sequence[T]], bool], alike: Callable[[T], object]
) -> list[T]:
    """Return the fewest items that must be left out; none if leaving out a few does not help.

    One culprit takes log2(n) + 1 trials. With several culprits, each kind takes as many again.

    Args:
        items: in an order that keeps neighbours together; all of them left out pass.
        passes: whether a trial without these items succeeds.
        alike: kind of an item: if one is a culprit, the others of its kind are suspects.
    """
    known = {(): False, tuple(items): True}

    def good(some: Iterable[T]) -> bool:
        chosen = set(some)
        out = tuple(item for item in items if item in chosen)
        if out not in known:
            known[out] = passes(out)
        return known[out]

    suspects = list(items)
    while len(suspects) > 1:  # if there is one culprit, each trial tells its half
        half = suspects[: len(suspects) // 2]
        suspects = half if good(half) else suspects[len(half) :]
    if good(suspects):
        return suspects
    kinds = {alike(item): item for item in items}
    if not any(good(set(items) - {one}) for one in list(kinds.values())[:_KINDS]):
        return []  # whatever is left alone fails
    culprits: list[T] = []
    left = list(items)
    for _ in range(_KINDS):
        low, high = 0, len(left)  # without the culprits and the first `high` it passes
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if good([*culprits, *left[:middle]]) else (middle, high)
        kind = alike(left[high - 1])
        culprits += [item for item in left[:high] if alike(item) == kind]
        left = [item for item in left[:high] if alike(item) != kind]
        if good(culprits):
            return _reduced(culprits, good)
    return []


def _reduced(items: list[T], good: Callable[[Iterable[T]], bool]) -> list[T]:
    """Leave out what is not needed, by halves, quarters and so on."""
    size = len(items) // 2
    while size:
        for start in range(0, len(items), size):
            rest = items[:start] + items[start + size :]
            if good(rest):
                return _reduced(rest, good)
        size //= 2
    return items
