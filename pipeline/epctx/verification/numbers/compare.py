"""Comparison of an output with the right one, and of the difference with limits (section 7).

Strings, booleans and integers are exact, unless a limit allows integers a difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from epctx.manifest import Tolerance
from epctx.verification.findings import Comparison
from epctx.verification.numbers import evidence, floats
from epctx.verification.numbers.scale import Scale, measure

Array = npt.NDArray[np.generic]

EXACT: Final = Tolerance()
_STRAY: Final = 1e-4
"""Share of rows that may have an unexplained other winner: in the cache of a 4-bit decoder, one of
65,536 rows lost by 16 times the error of all elements."""


def compare(
    expected: Array, actual: Array, tolerance: Tolerance = EXACT, scale: Scale | None = None
) -> Comparison:
    """Compare an output, of any shape and type, with the right output.

    NaN equals NaN and an infinity equals itself; on one side only they are a `problem`.

    Args:
        expected: the right output.
        actual: the computed output.
        tolerance: the limits; by them the share of elements that could have failed is computed.
        scale: scale of a floating-point output over all input sets; None for the scale of
            `expected` alone.
    """
    comparison = Comparison(dtype=str(expected.dtype), shape=expected.shape)
    mismatch = _mismatch(expected, actual)
    if mismatch is not None:
        return replace(comparison, problem=mismatch)
    if expected.size == 0:
        return replace(comparison, equal=True, max_abs=0.0, max_rel=0.0)
    kind = expected.dtype.kind
    if kind in "OUSb":
        return _compare_exact(comparison, expected, actual)
    if kind in "iu":
        return _compare_integers(comparison, expected, actual, tolerance)
    scale = measure([expected], tolerance) if scale is None else scale
    comparison = floats.compare(comparison, expected, actual, scale, tolerance)
    if comparison.problem is not None:
        return comparison
    if tolerance == EXACT:
        return replace(comparison, checkable=_exact(expected))
    top_k = None
    if kind != "c":
        noise = 0.0 if comparison.sqnr is None else comparison.power * 10 ** (-comparison.sqnr / 10)
        top_k = evidence.top_k(expected, actual, scale, tolerance, noise)
    share = evidence.share(expected, scale, tolerance)
    if scale.probabilities and top_k is not None and (top_k.rows == 1 or top_k.winners > 1):
        share = max(share, top_k.decided / top_k.rows)
    return replace(comparison, checkable=share, top_k=top_k)


def excess(comparison: Comparison, tolerance: Tolerance) -> str | None:
    """Return why the comparison exceeds the tolerance; None if it does not.

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
    """Return whether a dtype's differences are judged by relative error, cosine and SQNR."""
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
        for name, unit, value, least in (
            ("cosine", "", comparison.cosine, tolerance.cosine_min),
            ("SQNR", " dB", comparison.sqnr, tolerance.sqnr_min),
        ):
            if least is not None and value is not None:
                judged = True
                if not value >= least and (comparison.max_abs or 0.0) > (tolerance.floor or 0.0):
                    yield f"{name} {value:.9g}{unit} < {least:.12g}{unit}"
        if judged:
            yield from _losers(
                comparison, 1.0 if tolerance.top_k_min is None else tolerance.top_k_min
            )
    if not judged:
        yield "it is not equal, and no limit allows a difference"


def _losers(comparison: Comparison, least: float) -> Iterator[str]:
    top_k = comparison.top_k
    if top_k is not None and top_k.agreeing < least * top_k.decided:
        yield (
            f"other elements are the largest in {top_k.decided - top_k.agreeing} of "
            f"{top_k.decided} decided rows"
        )
    elif top_k is not None and top_k.exchanged > max(1 - least, _STRAY) * top_k.rows:
        yield (
            f"other elements are the largest in {top_k.exchanged} of {top_k.rows} rows, by more "
            "than the error of the others explains"
        )


def _mismatch(expected: Array, actual: Array) -> str | None:
    if expected.dtype != actual.dtype:
        return f"its type is {actual.dtype}, not {expected.dtype}"
    if expected.shape != actual.shape:
        return f"its shape is {list(actual.shape)}, not {list(expected.shape)}"
    return None


def _compare_exact(comparison: Comparison, expected: Array, actual: Array) -> Comparison:
    different = np.asarray(expected != actual)
    count = int(np.count_nonzero(different))
    comparison = replace(comparison, checkable=_exact(expected))
    if not count:
        return replace(comparison, equal=True, max_abs=0.0, max_rel=0.0)
    return replace(
        comparison,
        problem=f"{count} of {expected.size} elements differ",
        worst=floats.locate(expected, actual, int(np.argmax(different))),
    )


def _compare_integers(
    comparison: Comparison, expected: Array, actual: Array, tolerance: Tolerance
) -> Comparison:
    at, largest, magnitude = 0, -1, 0
    for start, e, a in floats.chunks(expected, actual):
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
    share = _exact(expected)
    if tolerance.max_abs is not None and share:
        limit = Tolerance(max_abs=tolerance.max_abs)
        share = evidence.share(expected, Scale(largest=float(magnitude)), limit)
    comparison = replace(comparison, checkable=share)
    if largest < 0:
        return replace(comparison, equal=True, max_abs=0.0, max_rel=0.0)
    return replace(
        comparison,
        max_abs=float(largest),
        max_rel=largest / magnitude if magnitude else None,
        worst=floats.locate(expected, actual, at),
    )


def _exact(expected: Array) -> float:
    """Return the share of elements that could have failed where equality is required. It is 0 if
    all elements have the same value.
    """
    first = expected.reshape(-1)[0]
    different = expected != first
    if expected.dtype.kind not in "OUSbiu":
        finite = np.isfinite(expected.astype(np.complex128))
        return float(np.count_nonzero(finite)) / expected.size if different[finite].any() else 0.0
    return float(expected.size == 1 or bool(np.any(different)))
