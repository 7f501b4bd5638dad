"""Evidence of a comparison: the elements that could have shown an error.

An element could have failed if the usual value of its output in its place would exceed a limit. The
usual value is the median of the nonzero elements; for a zero, their median magnitude. NaN, infinite
and extreme elements of the source could not have failed, and if all values are alike, none could.
A confident classifier gives one large probability. There the decided rows count, too, unless there
are several and all have the same winner.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from epctx.manifest import Tolerance
from epctx.verification.findings import TopK
from epctx.verification.numbers.scale import Scale

Array = npt.NDArray[np.generic]

SAMPLE: Final = 1 << 20
"""Greatest number of elements that are examined; of a larger output, every n-th one is."""
_FEW: Final = 4
"""Least number of elements for a meaningful median; with fewer, the usual value is 0."""
_ROWS: Final = 1 << 22
"""Elements of rows that are converted to float64 at a time."""
_BEST: Final = 5
"""Greatest number of a row's best elements, as in top-5."""
_CHANNELS: Final = 1024
_EXPLAINED: Final = 16.0
"""A winner may lose by this multiple of the error of all elements. In models of the zoo, QNN needs
at most 3 (float) and 9 (quantized).
"""


def share(expected: Array, scale: Scale, tolerance: Tolerance) -> float:
    """The share, 0 to 1, of a floating-point output's elements that could have failed."""
    flat = expected.reshape(-1)
    step = -(-flat.size // SAMPLE)
    step += step > 1 and not step % 2  # odd, so that all of an even number of channels are met
    sample = flat[::step]
    values = np.abs(sample) if expected.dtype.kind == "c" else sample.astype(np.float64)
    magnitudes = np.abs(values)
    ordinary = np.isfinite(magnitudes) & (magnitudes < scale.extreme)
    some = ordinary & (magnitudes > 0)
    if not some.any():
        return 0.0
    at = np.arange(0, flat.size, step)
    scales = scale.at(at, magnitudes)
    limits = _limits(tolerance, scales)
    usual = float(np.median(values[some])) if values.size >= _FEW else 0.0
    limits = np.minimum(limits, _together(values[ordinary], usual, scales, ordinary, tolerance))
    if np.isinf(limits).all():
        limits = np.zeros(values.shape)  # without a limit, only equal elements pass
    limits = np.maximum(limits, tolerance.floor or 0.0)
    checkable = some & (np.abs(values - usual) > limits)
    zeros = ordinary & (magnitudes == 0)
    if zeros.any():
        checkable |= zeros & (np.median(magnitudes[some]) > limits)
    return float(np.count_nonzero(checkable)) / values.size


def top_k(
    expected: Array, actual: Array, scale: Scale, tolerance: Tolerance, noise: float
) -> TopK | None:
    """Compare the largest elements of each row of scores; None if there are no rows.

    Scores lie in the last of two or three axes, or in the second of four or more (images). A row is
    decided if a gap between two of its largest elements is wider than the allowed error. The
    elements before the widest gap must be the largest in the other output, too. In any other row,
    another element may be the largest if the error of all elements explains it.

    Args:
        noise: sum of the squared errors of all elements, relative to their scales.
    """
    rows = _rows(expected.shape)
    if rows is None:
        return None
    error = math.sqrt(noise / _computed(expected, actual))
    outer, classes, inner = rows
    decided = agreeing = exchanged = 0
    winners = np.zeros(classes, np.bool_)
    step = max(1, _ROWS // (classes * inner))
    for start in range(0, outer, step):
        part = slice(start, start + step)
        right = expected.reshape(rows)[part].astype(np.float64)
        computed = actual.reshape(rows)[part].astype(np.float64)
        right = np.where(np.isnan(right), -math.inf, right)
        best = _largest(right, min(_BEST + 1, classes))
        values = np.take_along_axis(right, best, axis=1)
        with np.errstate(invalid="ignore"):
            gaps = values[:, :-1] - values[:, 1:]
        usable = (np.abs(values[:, :-1]) < scale.extreme) & np.isfinite(values[:, :-1])
        gaps = np.where(usable, gaps, -math.inf)
        last = gaps.argmax(axis=1, keepdims=True)
        winner = best[:, :1]
        at = (np.arange(start, start + len(right))[:, None, None] * classes + winner) * inner
        at += np.arange(inner)
        scales = scale.at(at, np.abs(values[:, :1]))
        limits = _limits(tolerance, scales)
        apart = np.take_along_axis(gaps, last, axis=1) > limits
        chosen = right >= np.take_along_axis(values, last, axis=1)
        least = np.where(chosen, computed, math.inf).min(axis=1, keepdims=True)
        most = np.where(chosen, -math.inf, computed).max(axis=1, keepdims=True)
        winners[winner[apart]] = True
        decided += int(np.count_nonzero(apart))
        agreeing += int(np.count_nonzero(apart & (least >= most)))
        other = computed.argmax(axis=1, keepdims=True)
        lost = values[:, :1] - np.take_along_axis(right, other, axis=1)
        explained = np.maximum(_EXPLAINED * error * scales, tolerance.floor or 0.0)
        exchanged += int(np.count_nonzero(~apart & usable[:, :1] & (lost > explained)))
    return TopK(
        rows=outer * inner,
        decided=decided,
        agreeing=agreeing,
        winners=int(np.count_nonzero(winners)),
        exchanged=exchanged,
    )


def _computed(expected: Array, actual: Array) -> int:
    """Return how many elements of an output that looks like scores were computed. Copied elements
    have no error: in a cache of keys and values, all positions but the last.
    """
    differs, axis = expected != actual, 1 if expected.ndim > 3 else expected.ndim - 1
    sizes = [
        int(np.count_nonzero(differs.any(axis=tuple({*range(expected.ndim)} - {each}))))
        for each in range(expected.ndim)
        if each != axis
    ]
    return max(1, math.prod(sizes) * int(expected.shape[axis]))


def _largest(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.intp]:
    """Return the indices of the largest elements along axis 1, the largest first."""
    some = np.argpartition(-values, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(values, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)


def _rows(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return the shape (outer, classes, inner) of scores; None if it does not look like scores."""
    if len(shape) < 2:
        return None
    images = len(shape) > 3
    axis = 1 if images else len(shape) - 1
    if not (_BEST if images else 1) < shape[axis] <= (_CHANNELS if images else shape[axis]):
        return None
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _limits(tolerance: Tolerance, scales: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the least error with which an element fails by itself; infinity if none does."""
    limits = np.full(scales.shape, math.inf)
    if tolerance.max_abs is not None:
        limits = np.minimum(limits, tolerance.max_abs)
    if tolerance.max_rel is not None:
        limits = np.minimum(limits, tolerance.max_rel * scales)
    return limits


def _together(
    values: npt.NDArray[np.float64],
    usual: float,
    scales: npt.NDArray[np.float64],
    ordinary: npt.NDArray[np.bool_],
    tolerance: Tolerance,
) -> npt.NDArray[np.float64] | float:
    """Return the least error with which elements fail together, by cosine or SQNR; infinity if
    none does.
    """
    units = scales[ordinary]
    scaled = values / units
    power = float(np.dot(scaled, scaled))
    other = np.where(values == 0, 0.0, usual) / units
    allowed = math.inf
    if tolerance.cosine_min is not None and tolerance.cosine_min > 0:
        norm = math.sqrt(power * float(np.dot(other, other)))
        if not norm or float(np.dot(scaled, other)) / norm < tolerance.cosine_min:
            allowed = math.sqrt(1 - min(tolerance.cosine_min, 1.0) ** 2)
    if tolerance.sqnr_min is not None:
        ratio = 10 ** (-tolerance.sqnr_min / 20)
        gap = scaled - other
        if float(np.dot(gap, gap)) > ratio**2 * power:
            allowed = min(allowed, ratio)
    if math.isinf(allowed):
        return math.inf
    limits: npt.NDArray[np.float64] = allowed * math.sqrt(power / values.size) * scales
    return limits
