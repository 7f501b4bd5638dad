"""How an output's elements are distributed over the decades of their error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from epctx.verification.findings import DECADES, Comparison

NAMES: Final = ("equal", *(f"below {most:g}" for most in DECADES), "beyond")
"""What a place of `Comparison.histogram` counts: elements by their error over their scale."""
HEIGHT: Final = 22
_PITCH: Final = 8
WIDTH: Final = _PITCH * len(NAMES)


class Column(Struct, frozen=True, kw_only=True):
    """A decade's column, in pixels; `beyond`: all of its errors are beyond the tolerance."""

    words: str
    x: int
    height: float
    beyond: bool


class Histogram(Struct, frozen=True, kw_only=True):
    """The columns of an output; `words` says the same as text."""

    columns: tuple[Column, ...]
    words: str


def histogram(found: Comparison, most: float | None) -> Histogram | None:
    """The histogram of an output. Heights are logarithmic: one element in a million is seen.

    Args:
        most: the tolerance, relative to the element's scale; None: not judged by it.
    """
    counts = found.histogram
    if not any(counts):
        return None
    told = tuple(
        (f"{count:,} {name}", place, count)
        for place, (name, count) in enumerate(zip(NAMES, counts, strict=True))
        if count
    )
    return Histogram(
        columns=tuple(
            Column(
                words=words,
                x=_PITCH * place,
                height=_height(count, counts),
                beyond=most is not None and place > 0 and _least(place) >= most,
            )
            for words, place, count in told
        ),
        words=f"Of {sum(counts):,} elements: " + ", ".join(words for words, _, _ in told),
    )


def _height(count: int, counts: Sequence[int]) -> float:
    return round(2 + (HEIGHT - 2) * math.log1p(count) / math.log1p(max(counts)), 1)


def _least(place: int) -> float:
    """The least error that a place counts."""
    return DECADES[place - 2] if place > 1 else 0.0
