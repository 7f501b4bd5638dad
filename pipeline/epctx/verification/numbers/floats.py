"""Comparison of an output of a floating-point type with the right one.

Differences, norms and dot products are taken in float64, chunk by chunk, so that an output of any
size is compared without a copy of the whole. `scale` determines what they are relative to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from epctx.manifest import Tolerance
from epctx.verification.findings import DECADES, Comparison, Worst
from epctx.verification.numbers import scale as scales
from epctx.verification.numbers.scale import Array, Floats, Magnitudes, Scale

_END: Final = 0.99
"""A value counts as clamped from this share of the largest number on: QNN's simulator gives 65536
for 65504.
"""
_EDGES: Final = (np.nextafter(0.0, 1.0), *DECADES)
"""Edges of the histogram; only equal elements are below the first."""
_LEAST_SQNR: Final = -999.0
"""Least SQNR in decibels, also for noise beyond float64, which has no finite ratio."""


class Fit(Struct, frozen=True):
    """Sums over elements of an output and their right values, for a comparison of both.

    Attributes:
        dot: sum of the products.
        power: sum of the squares of right values.
        actual_power: sum of the squares of computed values.
        error: sum of the absolute differences.
        count: number of elements.
        largest: the largest magnitude of a right value.
    """

    dot: float = 0.0
    power: float = 0.0
    actual_power: float = 0.0
    error: float = 0.0
    count: int = 0
    largest: float = 0.0

    def __add__(self, other: Fit) -> Fit:
        return Fit(
            self.dot + other.dot,
            self.power + other.power,
            self.actual_power + other.actual_power,
            self.error + other.error,
            self.count + other.count,
            max(self.largest, other.largest),
        )


class _First(Struct):
    """Result of the first pass: elements that are not finite, and whether all are equal."""

    equal: bool = True
    problem: str | None = None
    at: int = 0
    nan: int = 0
    infinite: int = 0


class _Second(Struct):
    """Result of the second pass: the largest errors, and the sums of cosine and SQNR."""

    max_abs: float = 0.0
    error: float = 0.0
    count: int = 0
    max_rel: float | None = 0.0
    at: int = 0
    dot: float = 0.0
    right: float = 0.0
    actual: float = 0.0
    noise: float = 0.0
    histogram: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(len(_EDGES) + 1, np.int64)
    )


def compare(
    comparison: Comparison, expected: Array, actual: Array, scale: Scale, tolerance: Tolerance
) -> Comparison:
    """Fill in a comparison of outputs of one type and shape.

    Args:
        scale: scale of the right output.
        tolerance: its `saturates_at` and `floor` decide which differences are no errors.
    """
    first = _first(expected, actual, tolerance.saturates_at)
    comparison = replace(comparison, nan=first.nan, infinite=first.infinite)
    if first.problem is not None:
        worst = locate(expected, actual, first.at)
        return replace(comparison, problem=first.problem, worst=worst)
    second = _second(expected, actual, scale, tolerance)
    if not math.isfinite(second.max_abs):
        problem = "the difference is beyond float64"
        return replace(comparison, problem=problem, worst=locate(expected, actual, second.at))
    dead = second.right > 0 and not second.actual and second.max_abs > (tolerance.floor or 0.0)
    norms = math.sqrt(second.right) * math.sqrt(second.actual)
    return replace(
        comparison,
        problem="it is zero throughout, and should not be" if dead else None,
        equal=first.equal,
        scale=scale.largest,
        max_abs=second.max_abs,
        max_rel=second.max_rel,
        cosine=max(-1.0, min(1.0, second.dot / norms)) if norms else None,
        sqnr=_decibels(second.right, second.noise),
        gain=second.dot / second.right if second.right else None,
        power=second.right,
        mean_abs=second.error / second.count if second.count else None,
        worst=None if first.equal else locate(expected, actual, second.at),
        histogram=tuple(second.histogram.tolist()),
    )


def fits(
    expected: Array, actual: Array, scale: Scale, floor: float
) -> Iterator[tuple[int, int, Fit]]:
    """Compare the slices that have scales of their own; yield axis, index and sums of each.

    Differences up to the floor count as zero, except in the sum of errors.
    """
    for hidden in scale.hidden:
        judged = zip(hidden.slices, hidden.judged, strict=True)
        slices = [index for index, own in judged if own]
        others = tuple(axis for axis in range(expected.ndim) if axis != hidden.axis)
        x, y = (np.real(scales.widen(np.take(a, slices, hidden.axis))) for a in (expected, actual))
        usable = np.isfinite(x) & np.isfinite(y)
        x, y = np.where(usable, x, 0.0), np.where(usable, y, 0.0)
        gaps = np.abs(x - y)
        y = np.where(gaps <= floor, x, y)
        dots, actuals = (x * y).sum(others), (y * y).sum(others)
        powers, errors = (x * x).sum(others), gaps.sum(others)
        most = np.abs(x).max(others, initial=0.0)
        for place, index in enumerate(slices):
            yield (
                hidden.axis,
                index,
                Fit(
                    dot=float(dots[place]),
                    power=float(powers[place]),
                    actual_power=float(actuals[place]),
                    error=float(errors[place]),
                    count=x.size // len(slices),
                    largest=float(most[place]),
                ),
            )


def locate(expected: Array, actual: Array, flat: int) -> Worst:
    """Return an element's index and both values."""
    index = tuple(int(i) for i in np.unravel_index(flat, expected.shape))
    return Worst(index=index, expected=str(expected[index]), actual=str(actual[index]))


def chunks(expected: Array, actual: Array) -> Iterator[tuple[int, Array, Array]]:
    """Yield both outputs in chunks of `scale.CHUNK` elements, each with its first index."""
    left, right = expected.reshape(-1), actual.reshape(-1)
    for start in range(0, left.size, scales.CHUNK):
        yield start, left[start : start + scales.CHUNK], right[start : start + scales.CHUNK]


def _first(expected: Array, actual: Array, saturates_at: float | None) -> _First:
    result = _First()
    for start, e, a in chunks(expected, actual):
        x, y = scales.widen(e), scales.widen(a)
        nan = np.isnan(x)
        same = (x == y) | (nan & np.isnan(y))
        finite = np.isfinite(x)
        broken = ~same & ~(finite & np.isfinite(y)) & ~_saturated(x, y, saturates_at)
        if broken.any():
            i = int(np.argmax(broken))
            result.equal, result.at, result.problem = False, start + i, _non_finite(x[i], y[i])
            return result
        result.equal = result.equal and bool(same.all())
        result.nan += int(np.count_nonzero(nan))
        result.infinite += int(np.count_nonzero(~finite & ~nan))
    return result


def _second(expected: Array, actual: Array, scale: Scale, tolerance: Tolerance) -> _Second:
    """Compare finite elements; for cosine and SQNR the ordinary ones, divided by their scale."""
    result = _Second()
    most = -1.0
    for start, e, a in chunks(expected, actual):
        x, y = scales.widen(e), scales.widen(a)
        at = start + np.flatnonzero(np.isfinite(x) & ~_saturated(x, y, tolerance.saturates_at))
        x, y = x[at - start], y[at - start]
        if not at.size:
            continue
        magnitudes: Magnitudes = np.abs(x)
        units = scale.at(at, magnitudes)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            gaps: Magnitudes = np.abs(x - y)
            relative = np.where(gaps > 0, gaps / units, 0.0)
        result.max_abs = max(result.max_abs, float(gaps.max()))
        result.error += float(gaps.sum())
        result.count += gaps.size
        bins = np.searchsorted(_EDGES, relative, side="right")
        result.histogram += np.bincount(bins, minlength=len(_EDGES) + 1)
        i = int(np.argmax(relative))
        if float(relative[i]) > most:
            most, result.at = float(relative[i]), int(at[i])
        _add(result, x, y, magnitudes < scale.extreme, units)
    result.max_rel = most if math.isfinite(most) else None
    return result


def _saturated(x: Floats, y: Floats, saturates_at: float | None) -> npt.NDArray[np.bool_]:
    """Find elements beyond the range of the EP's type that it clamped or made infinite."""
    if saturates_at is None or x.dtype.kind == "c":
        return np.zeros(x.shape, np.bool_)
    beyond = np.isfinite(x) & (np.abs(x) > saturates_at)
    saturated: npt.NDArray[np.bool_] = (
        beyond & (np.sign(x) == np.sign(y)) & (np.abs(y) >= _END * saturates_at)
    )
    return saturated


def _add(
    sums: _Second, x: Floats, y: Floats, ordinary: npt.NDArray[np.bool_], units: Magnitudes
) -> None:
    if not ordinary.all():
        x, y, units = x[ordinary], y[ordinary], units[ordinary]
    if not units.size or not units.all():  # all of them are zero
        return
    with np.errstate(over="ignore", invalid="ignore"):
        x, y = x / units, y / units
        sums.dot += float(np.real(np.vdot(x, y)))
        sums.right += float(np.real(np.vdot(x, x)))
        sums.actual += float(np.real(np.vdot(y, y)))
        gaps = x - y
        sums.noise += float(np.real(np.vdot(gaps, gaps)))


def _decibels(signal: float, noise: float) -> float | None:
    """Signal-to-quantization-noise ratio; None if there is no noise or no signal."""
    if not noise or not signal:
        return None
    ratio = signal / noise
    return max(_LEAST_SQNR, 10 * math.log10(ratio)) if ratio > 0 else _LEAST_SQNR


def _non_finite(expected: complex, actual: complex) -> str:
    def word(value: complex) -> str:
        if np.isnan(value):
            return "NaN"
        return "infinite" if np.isinf(value) else "finite"

    if word(expected) == word(actual) == "infinite":
        return "it is infinite with another sign than it should"
    return f"it is {word(actual)} where {word(expected)} is right"
