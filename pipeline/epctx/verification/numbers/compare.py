"""How far an output is from what it should be (design section 7, *numbers*).

Differences, norms and dot products are taken in float64, chunk by chunk, so that an output of any
size is compared without a copy of the whole. Strings, booleans and integers are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from epctx.manifest import Tolerance
from epctx.verification.findings import Comparison, Worst

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float64] | npt.NDArray[np.complex128]

CHUNK = 1 << 20
"""Elements converted to float64 at a time: 8 MiB a side."""


def compare(expected: Array, actual: Array) -> Comparison:
    """Compare an output, of any shape and type, with what it should be.

    NaN equals NaN and an infinity equals itself; on one side only they are a `problem`.
    """
    found = Comparison(dtype=str(expected.dtype), shape=expected.shape)
    mismatch = _mismatch(expected, actual)
    if mismatch is not None:
        return replace(found, problem=mismatch)
    if expected.size == 0:
        return replace(found, equal=True, max_abs=0.0, max_rel=0.0)
    kind = expected.dtype.kind
    if kind in "OUSb":
        return _compare_exact(found, expected, actual)
    if kind in "iu":
        return _compare_integers(found, expected, actual)
    return _compare_floats(found, expected, actual)


def excess(comparison: Comparison, tolerance: Tolerance) -> str | None:
    """Why the comparison is not within the tolerance; None if it is.

    A tolerance without any limit allows nothing but equality. Strings and booleans are always
    exact; integers are, unless `max_abs` allows a difference.
    """
    if comparison.problem is not None:
        return comparison.problem
    if comparison.equal:
        return None
    reasons = list(_excesses(comparison, tolerance))
    return "; ".join(reasons) if reasons else None


def is_floating(dtype: str) -> bool:
    """Whether a dtype's differences are judged by relative error and cosine."""
    return dtype.startswith(("float", "bfloat", "complex"))


def _excesses(comparison: Comparison, tolerance: Tolerance) -> Iterator[str]:
    judged = False
    if tolerance.max_abs is not None and comparison.max_abs is not None:
        judged = True
        if not comparison.max_abs <= tolerance.max_abs:
            yield f"absolute error {comparison.max_abs:.3g} > {tolerance.max_abs:g}"
    if is_floating(comparison.dtype):
        if tolerance.max_rel is not None:
            judged = True
            if comparison.max_rel is None:
                yield "the expected output is zero, or all but zero, and this one is not"
            elif not comparison.max_rel <= tolerance.max_rel:
                yield f"relative error {comparison.max_rel:.3g} > {tolerance.max_rel:g}"
        if tolerance.cosine_min is not None and comparison.cosine is not None:
            judged = True
            if not comparison.cosine >= tolerance.cosine_min:
                yield f"cosine {comparison.cosine:.9g} < {tolerance.cosine_min:g}"
    if not judged:
        yield "it is not equal, and no limit allows a difference"


def _mismatch(expected: Array, actual: Array) -> str | None:
    if expected.dtype != actual.dtype:
        return f"its type is {actual.dtype}, not {expected.dtype}"
    if expected.shape != actual.shape:
        return f"its shape is {list(actual.shape)}, not {list(expected.shape)}"
    return None


def _compare_exact(found: Comparison, expected: Array, actual: Array) -> Comparison:
    different = np.asarray(expected != actual)
    count = int(np.count_nonzero(different))
    if not count:
        return replace(found, equal=True, max_abs=0.0, max_rel=0.0)
    return replace(
        found,
        problem=f"{count} of {expected.size} elements differ",
        worst=_worst(expected, actual, int(np.argmax(different))),
    )


def _compare_integers(found: Comparison, expected: Array, actual: Array) -> Comparison:
    at, largest, magnitude = 0, -1, 0
    for start, e, a in _chunks(expected, actual):
        magnitude = max(magnitude, abs(int(e.max())), abs(int(e.min())))
        different = e != a
        if not different.any():
            continue
        # float64 finds the largest difference of 64-bit integers, Python's integers measure it.
        gaps = np.abs(e.astype(np.float64) - a.astype(np.float64))
        i = int(np.argmax(np.where(different, np.maximum(gaps, 0.5), 0.0)))
        gap = abs(int(e[i]) - int(a[i]))
        if gap > largest:
            at, largest = start + i, gap
    if largest < 0:
        return replace(found, equal=True, max_abs=0.0, max_rel=0.0)
    return replace(
        found,
        max_abs=float(largest),
        max_rel=largest / magnitude if magnitude else None,
        worst=_worst(expected, actual, at),
    )


@dataclass
class _Extremes:
    """The first pass over floats: what differs, where most, and the largest magnitudes."""

    unequal: bool = False
    problem: str | None = None
    at: int = 0
    max_abs: float = 0.0
    expected: float = 0.0
    actual: float = 0.0


def _compare_floats(found: Comparison, expected: Array, actual: Array) -> Comparison:
    extremes = _extremes(expected, actual)
    worst = _worst(expected, actual, extremes.at) if extremes.unequal else None
    if extremes.problem is not None:
        return replace(found, problem=extremes.problem, worst=worst)
    max_abs = _finite(extremes.max_abs)
    return replace(
        found,
        problem=None if max_abs is not None else "the difference is beyond float64",
        equal=not extremes.unequal,
        max_abs=max_abs,
        max_rel=_relative(max_abs, extremes.expected),
        cosine=_cosine(expected, actual, extremes),
        worst=worst,
    )


def _extremes(expected: Array, actual: Array) -> _Extremes:
    found = _Extremes()
    for start, e, a in _chunks(expected, actual):
        x, y = _wide(e), _wide(a)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        finite = np.isfinite(x) & np.isfinite(y)
        broken = ~same & ~finite
        if broken.any():
            i = int(np.argmax(broken))
            found.unequal, found.at = True, start + i
            found.problem = _non_finite(x[i], y[i])
            return found
        found.expected = max(found.expected, float(np.max(np.abs(x), initial=0.0, where=finite)))
        found.actual = max(found.actual, float(np.max(np.abs(y), initial=0.0, where=finite)))
        if same.all():
            continue
        found.unequal = True
        with np.errstate(over="ignore", invalid="ignore"):
            gaps = np.where(same, -1.0, np.abs(x - y))
        i = int(np.argmax(gaps))
        if float(gaps[i]) > found.max_abs:
            found.at, found.max_abs = start + i, float(gaps[i])
    return found


def _cosine(expected: Array, actual: Array, extremes: _Extremes) -> float | None:
    """Cosine over the finite elements, scaled so that no square over- or underflows."""
    if not extremes.expected or not extremes.actual:
        return None
    dot = left = right = 0.0
    for _, e, a in _chunks(expected, actual):
        x, y = _wide(e) / extremes.expected, _wide(a) / extremes.actual
        finite = np.isfinite(x) & np.isfinite(y)
        if not finite.all():
            x, y = x[finite], y[finite]
        dot += float(np.real(np.vdot(x, y)))
        left += float(np.real(np.vdot(x, x)))
        right += float(np.real(np.vdot(y, y)))
    return max(-1.0, min(1.0, dot / math.sqrt(left) / math.sqrt(right)))


def _relative(max_abs: float | None, magnitude: float) -> float | None:
    if max_abs is None:
        return None
    if not max_abs:
        return 0.0
    return _finite(max_abs / magnitude) if magnitude else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _non_finite(expected: complex, actual: complex) -> str:
    def word(value: complex) -> str:
        if np.isnan(value):
            return "NaN"
        return "infinite" if np.isinf(value) else "finite"

    if word(expected) == word(actual) == "infinite":
        return "it is infinite with another sign than it should"
    return f"it is {word(actual)} where {word(expected)} is right"


def _chunks(expected: Array, actual: Array) -> Iterator[tuple[int, Array, Array]]:
    left, right = expected.reshape(-1), actual.reshape(-1)
    for start in range(0, left.size, CHUNK):
        yield start, left[start : start + CHUNK], right[start : start + CHUNK]


def _wide(chunk: Array) -> Floats:
    if chunk.dtype.kind == "c":
        return chunk.astype(np.complex128)
    return chunk.astype(np.float64)


def _worst(expected: Array, actual: Array, flat: int) -> Worst:
    index = tuple(int(i) for i in np.unravel_index(flat, expected.shape))
    return Worst(index=index, expected=str(expected[index]), actual=str(actual[index]))
