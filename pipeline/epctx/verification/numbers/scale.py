"""The scale of an output: the magnitude that an element's error is divided by.

Most outputs have one scale, their largest magnitude over all input sets. With this scale alone, one
element could hide the errors of all others: beside a mask of -1e9, any error is negligible. So
there are three exceptions.

*Extreme elements* are set aside: the largest magnitudes, if they lie within two octaves of each
other, beyond 4096, and at least four octaves above all the rest, as masks (-1e4, -1e9, the lowest
float32) do. Each is judged relative to itself, and the rest is judged without them.

*Slices of one axis* (channels, rows) have scales of their own if most of them are small: if the
median of their largest magnitudes is less than an eighth of the whole output's. If that holds for
no axis, it may hold for blocks of neighbours. A slice's scale is its own largest magnitude, or the
median one if that is larger. The other axes follow, relative to these scales.

*Hidden slices* lie completely below the allowed error: nothing in them could fail. A hidden slice
of 16 values or more is judged by its own largest magnitude, unless rounding explains its values.
Any other hidden slice is not checkable.

The scale of a Softmax is its largest value, since its other values are small on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from epctx.manifest import Tolerance

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float64] | npt.NDArray[np.complex128]
Magnitudes = npt.NDArray[np.float64]

CHUNK: Final = 1 << 20
"""Elements converted to float64 at a time: 8 MiB."""
_EXPONENTS: Final = 2048
"""Number of float64's biased exponents, one for each octave."""
_BIAS: Final = 1023
_MASK_FROM: Final = 4096.0
_GAP: Final = 4
_WIDTH: Final = 2
_REST: Final = 128
"""Elements are set aside if at least one of so many nonzero elements remains."""
_UNEQUAL: Final = 8.0
_SLICES: Final = 4
LEAST_VALUES: Final = 16
"""Least number of slices, and of elements in each, for a decision about an axis."""
SUM: Final = 0.02
"""Greatest difference of the sum of rounded probabilities from 1."""
_BLOCK_FLOOR: Final = 64.0
"""A block's scale is not less than this part of the whole's: neighbours share their noise."""
_CHANCE: Final = 0.01
"""Slices of few values are named only if they are small by chance with less probability."""
_NEARLY: Final = 2.5
"""Slices have their own scales up to this multiple of the allowed error, and up to half of the
largest.
"""
_HALF: Final = 0.5
_COLUMNS: Final = 32
_DENSE: Final = 4.0
"""Factor by which normally distributed values are denser at zero than evenly spread ones."""
_APART: Final = 4.0
"""Factor by which hidden slices on a second axis are smaller than the smallest other one."""
_ROUNDINGS: Final = 8.0
"""Factor by which rounding within a model changes a value more than rounding its inputs."""


class Hidden(Struct, frozen=True, kw_only=True):
    """Slices of one axis that lie below the error that the output's own scale allows.

    Attributes:
        axis: axis of the output.
        slices: indices of the slices.
        magnitudes: the largest magnitude in each slice, in the output's unit.
        judged: for each slice, True if it is judged by its own scale, False if not checkable.
        values: number of values of each slice, over all input sets.
    """

    axis: int
    slices: tuple[int, ...]
    magnitudes: tuple[float, ...]
    judged: tuple[bool, ...]
    values: int

    @property
    def unjudged(self) -> dict[int, float]:
        """Largest magnitude of each slice that is not checkable, by index."""
        pairs = zip(self.slices, self.magnitudes, strict=True)
        return {index: m for (index, m), own in zip(pairs, self.judged, strict=True) if not own}


class Scale(Struct, frozen=True, kw_only=True):
    """The scale of each element of an output.

    Attributes:
        largest: the largest magnitude of an ordinary element; 0 if all are zero.
        extreme: magnitude from which on elements are extreme; infinity if none is.
        slices: factors of the scales of slices, for each unequal axis, with the length of a slice:
            element `i` of the flat output lies in slice `i // length % len(factors)`.
        hidden: slices that are judged by their own scales, or cannot be judged, by axis.
        least: least ordinary scale, from the floor of the tolerance.
        probabilities: one axis sums up to 1, as a Softmax's does.
    """

    largest: float
    extreme: float = math.inf
    slices: tuple[tuple[Magnitudes, int], ...] = ()
    hidden: tuple[Hidden, ...] = ()
    least: float = 0.0
    probabilities: bool = False

    def at(self, indices: npt.NDArray[np.int64], magnitudes: Magnitudes) -> Magnitudes:
        """Return the scales of elements, from their indices in the flat output and magnitudes."""
        scales = np.full(magnitudes.shape, self.largest)
        for factors, length in self.slices:
            scales *= factors[indices // length % len(factors)]
        return np.where(magnitudes >= self.extreme, magnitudes, np.maximum(scales, self.least))

    def own(self, index: Sequence[int]) -> str:
        """Words for the hidden slices that an element lies in, if they have scales of their own."""
        return "".join(
            f"; slice {index[each.axis]} of axis {each.axis} has a scale of its own, "
            f"{each.magnitudes[each.slices.index(index[each.axis])]:.3g} beside {self.largest:.3g}"
            for each in self.hidden
            if index[each.axis] in each.slices and index[each.axis] not in each.unjudged
        )


def measure(
    outputs: Sequence[Array],
    tolerance: Tolerance,
    *,
    noise: float = 0.0,
    rounded: Sequence[Array] = (),
) -> Scale:
    """Return the scale of an output.

    Args:
        outputs: right output for each input set, all of one floating-point type and shape.
        tolerance: limits; slices below the allowed error are hidden.
        noise: change by rounding in a hidden slice, as a share of the largest magnitude.
        rounded: the same outputs for rounded inputs; the changes in a slice are noise.
    """
    if not any(output.size for output in outputs):
        return Scale(largest=0.0)
    octaves, finite = np.zeros(_EXPONENTS - 1, np.int64), True
    for output in outputs:
        flat = output.reshape(-1)
        for start in range(0, flat.size, CHUNK):
            magnitudes: Magnitudes = np.abs(widen(flat[start : start + CHUNK]))
            usable = np.isfinite(magnitudes)
            finite = finite and bool(usable.all())
            octaves += _exponents(magnitudes[usable])
    extreme = _extremes(octaves)
    whole = finite and extreme == math.inf
    ordinary = [output if whole else _ordinary(output, extreme) for output in outputs]
    largest = float(max(_maxima(each.reshape(1, -1), (0, 1)) for each in ordinary))
    floor, allowed = tolerance.floor or 0.0, tolerance.max_rel or 0.0
    least = floor / allowed if allowed else 0.0
    if _are_probabilities(ordinary, largest):
        return Scale(largest=largest, least=least, probabilities=True)
    pairs = zip(outputs, rounded, strict=False)
    changes = [_ordinary(widen(one) - widen(other), math.inf) for one, other in pairs]
    slices = _unequal(ordinary, largest)
    hidden: list[Hidden] = []
    error = allowed * largest
    while 0 < error < largest:
        divided, moved = (_divide(each, slices) for each in (ordinary, changes))
        axis, chosen = _most_hidden(divided, error, frozenset(each.axis for each in hidden))
        if axis is None:
            break
        maxima, magnitudes = _over_all(divided, axis), _over_all(ordinary, axis)
        explained = np.full(maxima.shape, noise * largest)
        if moved:
            explained += _ROUNDINGS * _over_all(moved, axis)
        values = sum(each.size for each in ordinary) // len(maxima)
        limits = np.maximum(allowed * maxima, explained)
        judged = chosen & (values >= LEAST_VALUES) & (limits < maxima) & (floor < magnitudes)
        chosen &= judged | (maxima <= error)
        hidden.append(
            Hidden(
                axis=axis,
                slices=tuple(np.flatnonzero(chosen).tolist()),
                magnitudes=tuple(magnitudes[chosen].tolist()),
                judged=tuple(judged[chosen].tolist()),
                values=values,
            )
        )
        factors = np.where(judged, limits / error, 1.0)
        slices.append((factors, math.prod(ordinary[0].shape[axis + 1 :])))
    return Scale(
        largest=largest, extreme=extreme, slices=tuple(slices), hidden=tuple(hidden), least=least
    )


def widen(values: Array) -> Floats:
    """Convert values to float64 or complex128."""
    if values.dtype.kind == "c":
        return values.astype(np.complex128)
    return values.astype(np.float64)


def _exponents(magnitudes: Magnitudes) -> npt.NDArray[np.int64]:
    """Count finite elements by octave, which is float64's biased exponent."""
    exponents = np.ascontiguousarray(magnitudes).view(np.int64) >> 52
    return np.bincount(exponents, minlength=_EXPONENTS)[: _EXPONENTS - 1]


def _extremes(octaves: npt.NDArray[np.int64]) -> float:
    """Return the least extreme magnitude; infinity if there is none. Octave 0 (zero) is ignored."""
    extreme = math.inf
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
        extreme, occupied = lowest, rest
    return extreme


def _ordinary(output: Array, extreme: float) -> Array:
    """Return the output with zeros in place of elements that are extreme, NaN or infinite."""
    magnitudes = np.abs(output.astype(np.float64 if output.dtype.kind != "c" else None))
    return np.where(magnitudes < extreme, magnitudes, 0.0)


def _unequal(outputs: Sequence[Array], largest: float) -> list[tuple[Magnitudes, int]]:
    """Return factors of the slices of the most unequal axis, then of the next, relative to it."""
    slices: list[tuple[Magnitudes, int]] = []
    for _ in range(max(1, outputs[0].ndim) if largest else 0):
        factors = _most_unequal(_divide(outputs, slices), largest)
        if factors is None:
            break
        slices.append(factors)
    return slices


def _most_unequal(outputs: Sequence[Array], largest: float) -> tuple[Magnitudes, int] | None:
    best: tuple[float, Magnitudes, int] | None = None
    for maxima, length, floor in _partitions(outputs, largest):
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


def _most_hidden(
    outputs: Sequence[Array], error: float, seen: frozenset[int]
) -> tuple[int | None, npt.NDArray[np.bool_]]:
    """Return the axis whose hidden slices lie furthest below its other slices, and a mask of them.

    Slices of few values count only if no axis has slices of enough values. An axis of more than
    `_COLUMNS` such slices is a signal or an embedding, in which any value may be small.

    Args:
        outputs: outputs divided by the factors so far.
        error: the allowed error.
        seen: axes with hidden slices so far.
    """
    shape, size = outputs[0].shape, sum(each.size for each in outputs)
    axes = [axis for axis, count in enumerate(shape) if count > 1]
    telling = [axis for axis in axes if size >= shape[axis] * LEAST_VALUES]
    least, best, chosen = _APART if seen else 0.0, None, np.zeros(0, np.bool_)
    for axis in telling or axes:
        maxima = _over_all(outputs, axis)
        bound = max(error, min(_NEARLY * error, _HALF * maxima.max())) if telling else error
        hidden = (maxima > 0) & (maxima <= bound)
        if not telling:
            hidden &= (len(maxima) <= _COLUMNS) & _no_chance(outputs, axis, maxima)
        if axis in seen or not hidden.any():
            continue
        gap = float(maxima[~hidden & (maxima > 0)].min() / maxima[hidden].max())
        if gap > least:
            least, best, chosen = gap, axis, hidden
    return best, chosen


def _no_chance(outputs: Sequence[Array], axis: int, maxima: Magnitudes) -> npt.NDArray[np.bool_]:
    """Return a mask of slices of few values that are too small for chance, alone or together.

    If one slice is as small with probability `p`, then `k` of `m` slices are with a probability of
    at most `(m over k) * p ** k`. Zeros do not count as values: a Relu makes any number of them.
    """
    others = tuple(other for other in range(outputs[0].ndim) if other != axis)
    values = sum(np.count_nonzero(each, axis=others) for each in outputs)
    some = np.flatnonzero(maxima)
    logs = values[some] * np.log(np.minimum(maxima[some] / maxima.max() * _DENSE, 1.0))
    order = np.argsort(logs)
    number = np.arange(1, len(some) + 1)
    ways = np.cumsum(np.log((len(some) + 1 - number) / number))
    unlikely = np.flatnonzero(ways + number * logs[order] <= math.log(_CHANCE))
    small = np.zeros(maxima.shape, np.bool_)
    if unlikely.size:
        small[some[order[: unlikely[-1] + 1]]] = True
    return small


def _are_probabilities(outputs: Sequence[Array], largest: float) -> bool:
    if not 0 < largest <= 1 + SUM or outputs[0].dtype.kind == "c":
        return False
    if any(float(np.asarray(each.min())) < 0 for each in outputs):
        return False
    last = outputs[0].ndim - 1
    return any(
        all(
            bool((np.abs(each.sum(axis=axis, dtype=np.float64) - 1) < SUM).all())
            for each in outputs
        )
        for axis in {1, last}
        if 0 <= axis <= last
    )


def _partitions(
    outputs: Sequence[Array], largest: float
) -> Iterator[tuple[Magnitudes, int, float]]:
    """Yield largest magnitudes of each axis's slices, then of blocks; with length and floor."""
    shape, size = outputs[0].shape, outputs[0].size
    for axis, count in enumerate(shape):
        if count >= _SLICES and size >= count * LEAST_VALUES:
            yield _over_all(outputs, axis), math.prod(shape[axis + 1 :]), 0.0
    length = max(LEAST_VALUES, math.isqrt(size))
    whole = size // length * length
    if whole >= length * _SLICES:
        yield (
            np.maximum.reduce([_blocks(each, length) for each in outputs]),
            length,
            (largest / _BLOCK_FLOOR),
        )


def _blocks(output: Array, length: int) -> Magnitudes:
    """Return the largest magnitudes of blocks of `length` neighbours; the last may be shorter."""
    flat = output.reshape(-1)
    whole = flat.size // length * length
    maxima = _maxima(flat[:whole].reshape(-1, length), (1,))
    rest = flat[whole:]
    return np.append(maxima, _maxima(rest.reshape(1, -1), (1,))) if rest.size else maxima


def _over_all(outputs: Sequence[Array], axis: int) -> Magnitudes:
    """Return the largest magnitude in each slice of an axis, over all outputs."""
    others = tuple(other for other in range(outputs[0].ndim) if other != axis)
    maxima: Magnitudes = np.maximum.reduce([_maxima(each, others) for each in outputs])
    return maxima


def _divide(outputs: Sequence[Array], slices: Sequence[tuple[Magnitudes, int]]) -> Sequence[Array]:
    """Divide each slice of the outputs by its factor."""
    for factors, length in slices if outputs else ():
        at = np.arange(outputs[0].size).reshape(outputs[0].shape) // length % len(factors)
        outputs = [np.divide(each, factors[at]) for each in outputs]
    return outputs


def _maxima(values: Array, axes: tuple[int, ...]) -> Magnitudes:
    if values.dtype.kind == "c":
        values = np.abs(values)
    high, low = np.asarray(values.max(axis=axes)), np.asarray(values.min(axis=axes))
    maxima: Magnitudes = np.maximum(high.astype(np.float64), -low.astype(np.float64))
    return maxima
