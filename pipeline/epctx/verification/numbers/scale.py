"""The scale of an output: what the error of an element is relative to.

Of most outputs it is the largest magnitude. That alone would let one element silence all others:
beside a mask of -1e9 any other value is an error of nothing. So there are two exceptions.

*Extreme elements* are set aside: the largest magnitudes, where they lie within two octaves of each
other, beyond 4096, and at least four octaves above all the rest, as masks (-1e4, -1e9, the lowest
float32) do. Each is judged relative to itself, the rest without them.

*Slices of one axis* (channels, rows) or, where no axis tells, blocks of neighbours, have scales of
their own where they are unequal: where the median of their largest magnitudes is less than an
eighth of the whole output's. A slice's scale is its own largest magnitude or, if that is less, the
median one: a channel that is nearly off is not judged by its noise. Then the other axes, relative
to that. Probabilities have none of this: the scale of a
Softmax is its largest value, since its other values are small on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Array = npt.NDArray[np.generic]
Magnitudes = npt.NDArray[np.float64]

_EXPONENTS: Final = 2048
"""Values of float64's biased exponent: one for each octave."""
_BIAS: Final = 1023
_MASK_FROM: Final = 4096.0
_GAP: Final = 4
_WIDTH: Final = 2
_REST: Final = 128
"""Elements are set aside if at least one of so many of those that are not zero remains."""
_UNEQUAL: Final = 8.0
_SLICES: Final = 4
_ELEMENTS: Final = 16
"""The least number of slices, and of elements in each, that tell something of an axis."""
_SUM: Final = 0.02
"""How far probabilities that were rounded may be from 1."""
_BLOCK_FLOOR: Final = 64.0
"""A block's scale is not less than this part of the whole's: neighbours share their noise."""


class Scale(Struct, frozen=True, kw_only=True):
    """The scale of each element of an output.

    Attributes:
        largest: the largest magnitude of an ordinary element; 0: there is none but zero.
        extreme: magnitudes from here on are extreme; infinity: none is.
        slices: what the scales of slices are multiplied by, for each axis that is unequal, with the
            length of a slice: element `i` of the flat output lies in `i // length % len(factors)`.
        probabilities: whether one axis sums up to 1, as a Softmax's does.
    """

    largest: float
    extreme: float = math.inf
    slices: tuple[tuple[Magnitudes, int], ...] = ()
    probabilities: bool = False

    def at(self, indices: npt.NDArray[np.int64], magnitudes: Magnitudes) -> Magnitudes:
        """The scales of elements, by their indices in the flat output and their magnitudes."""
        found = np.full(magnitudes.shape, self.largest)
        for factors, length in self.slices:
            found *= factors[indices // length % len(factors)]
        return np.where(magnitudes >= self.extreme, magnitudes, found)


def measure(expected: Array, octaves: npt.NDArray[np.int64], largest: float) -> Scale:
    """The scale of an output.

    Args:
        expected: what is right, of a floating-point type.
        octaves: how many of its finite elements have which exponent, as `exponents` counts.
        largest: the largest magnitude of a finite element.
    """
    extreme = _extremes(octaves)
    if extreme < math.inf or not np.isfinite(expected).all():
        magnitudes = np.abs(expected.astype(np.float64 if expected.dtype.kind != "c" else None))
        ordinary = np.where(magnitudes < extreme, magnitudes, 0.0)  # NaN and infinity are not
        largest = float(ordinary.max(initial=0.0))
    else:
        ordinary = expected if expected.dtype.kind in "fc" else expected.astype(np.float32)
    if _are_probabilities(ordinary, largest):
        return Scale(largest=largest, probabilities=True)
    return Scale(largest=largest, extreme=extreme, slices=tuple(_slices(ordinary, largest)))


def exponents(magnitudes: Magnitudes) -> npt.NDArray[np.int64]:
    """How many finite elements lie in which octave, by float64's biased exponent."""
    found = np.ascontiguousarray(magnitudes).view(np.int64) >> 52
    return np.bincount(found, minlength=_EXPONENTS)[: _EXPONENTS - 1]


def _extremes(octaves: npt.NDArray[np.int64]) -> float:
    """Where extreme magnitudes begin. Octave 0 holds zero, which tells nothing."""
    found = math.inf
    occupied = [int(octave) for octave in np.flatnonzero(octaves) if octave > 0]
    total = int(octaves[1:].sum())
    while occupied:
        top = occupied[-1]
        cluster = [octave for octave in occupied if octave > top - _WIDTH - 1]
        rest = occupied[: len(occupied) - len(cluster)]
        if not rest or cluster[0] - rest[-1] <= _GAP:
            break
        lowest = math.ldexp(1.0, cluster[0] - _BIAS)
        remaining = int(octaves[rest].sum())
        if lowest < _MASK_FROM or remaining < max(_SLICES, total / _REST):
            break
        found, occupied = lowest, rest
    return found


def _slices(ordinary: Array, largest: float) -> Iterator[tuple[Magnitudes, int]]:
    """Factors of the slices of the axis that is the most unequal one, then of what remains."""
    for _ in range(max(1, ordinary.ndim) if largest else 0):
        found = _most_unequal(ordinary, largest)
        if found is None:
            return
        yield found
        factors, length = found
        at = np.arange(ordinary.size).reshape(ordinary.shape) // length % len(factors)
        ordinary = np.divide(ordinary, factors[at])


def _most_unequal(ordinary: Array, largest: float) -> tuple[Magnitudes, int] | None:
    best: tuple[float, Magnitudes, int] | None = None
    for maxima, length, floor in _partitions(ordinary, largest):
        some = maxima[maxima > 0]
        if len(some) < _SLICES:
            continue
        typical = max(float(np.median(some)), floor)
        if typical * _UNEQUAL < largest and (best is None or typical < best[0]):
            best = typical, maxima, length
    if best is None:
        return None
    typical, maxima, length = best
    return np.maximum(maxima, typical) / largest, length


def _are_probabilities(ordinary: Array, largest: float) -> bool:
    if not 0 < largest <= 1 + _SUM or ordinary.dtype.kind == "c":
        return False
    if float(np.asarray(ordinary.min())) < 0:
        return False
    axes = {axis for axis in (1, ordinary.ndim - 1) if 0 <= axis < ordinary.ndim}
    return any(
        bool((np.abs(ordinary.sum(axis=axis, dtype=np.float64) - 1) < _SUM).all()) for axis in axes
    )


def _partitions(ordinary: Array, largest: float) -> Iterator[tuple[Magnitudes, int, float]]:
    """The largest magnitudes of slices of each axis, then of blocks; with their lengths, floors."""
    size = ordinary.size
    for axis, count in enumerate(ordinary.shape):
        if count >= _SLICES and size >= count * _ELEMENTS:
            length = math.prod(ordinary.shape[axis + 1 :])
            yield _maxima(ordinary.reshape(-1, count, length), (0, 2)), length, 0.0
    length = max(_ELEMENTS, math.isqrt(size))
    whole = size // length * length
    if whole >= length * _SLICES:
        flat = ordinary.reshape(-1)
        maxima = _maxima(flat[:whole].reshape(-1, length), (1,))
        if whole < size:
            maxima = np.append(maxima, _maxima(flat[whole:].reshape(1, -1), (1,)))
        yield maxima, length, largest / _BLOCK_FLOOR


def _maxima(values: Array, axes: tuple[int, ...]) -> Magnitudes:
    if values.dtype.kind == "c":
        values = np.abs(values)
    high, low = np.asarray(values.max(axis=axes)), np.asarray(values.min(axis=axes))
    found: Magnitudes = np.maximum(high.astype(np.float64), -low.astype(np.float64))
    return found
