"""The search for the first wrong node: which values are to be read next.

A node is the first wrong one where a value of it is beyond the tolerance and all that it uses is
within. Of what comes before a wrong node some are read at a time, evenly spread, and what comes
before a right one is believed to be right until nothing else is left: then it is read, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from epctx.commands.bisect.cutting import Layer


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
