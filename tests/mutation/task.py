"""The effect of a fault on the users of a model: 0 if they notice nothing, 1 if all is lost.

No measure here is epctx's: detections are decoded and matched, classes are chosen, columns have
units of their own. So a fault that a comparison cannot see has an effect. Where a value crosses a
threshold by less than MARGIN, either side is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.mutation.liar.epctx_liar.faults import MASKED, kind

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
Task = Callable[[Sequence[Array], Sequence[Array]], float]
"""Effect on one input set, from the outputs in the model's order, floats in float64."""
THRESHOLD: Final = 0.5
MARGIN: Final = 0.02
SATURATED: Final = -60000.0
"""Magnitude that a mask may come out as: the end of float16, or infinite."""
BEST: Final = 20
"""Classes whose order counts."""
ROUNDING: Final = 1e-6


@dataclass(frozen=True)
class Effect:
    """Effect of a fault.

    Attributes:
        channel: mean error of the worst channel by its own mean magnitude; of integers, booleans
            and strings, the share that differs.
        task: as the module says, on the worst input set.
    """

    channel: float = 0.0
    task: float = 0.0

    @property
    def nothing(self) -> bool:
        """Tell whether nobody could call the output wrong."""
        return self.task == 0 and self.channel < ROUNDING


def effect(
    measure: Task, axis: int, output: int, right: Sequence[Outputs], found: Sequence[Outputs]
) -> Effect:
    """Measure the effect of a fault in one output, with channels along `axis`, on all sets."""
    pairs = [
        ([_wide(each) for each in x.values()], [_wide(each) for each in y.values()])
        for x, y in zip(right, found, strict=True)
    ]
    channel = max(_channel(x[output], y[output], axis) for x, y in pairs)
    tasks = (1.0 if np.isinf(channel) else measure(x, y) for x, y in pairs)
    return Effect(channel=min(1.0, channel), task=min(1.0, float(max(tasks))))


def _wide(x: Array) -> Array:
    return x.astype(np.float64) if kind(x) == "f" else x


def _channel(right: Array, found: Array, axis: int) -> float:
    """Error of the worst channel; infinite where a mask is lost or a value is not finite."""
    if kind(right) != "f":
        return float(np.mean(right != found))
    x, y = (np.moveaxis(each, axis, -1) for each in (right, found))
    masked = x <= MASKED
    if not np.isfinite(y[~masked]).all() or not (y[masked] <= SATURATED).all():
        return math.inf
    others = tuple(range(x.ndim - 1))
    wrong = np.where(masked, 0, np.abs(x - y)).sum(axis=others)
    own = np.where(masked, 0, np.abs(x)).sum(axis=others)
    share = np.divide(wrong, own, out=(wrong > 0).astype(np.float64), where=own > 0)
    return float(share.max(initial=0.0))


@dataclass(frozen=True)
class Detections:
    """Decoded detections.

    Attributes:
        boxes: corners, [n, 4].
        scores: of classes, [n, classes].
        points: x, y and perhaps visibility of points on each, [n, points, 2 or 3].
    """

    boxes: Array
    scores: Array
    points: Array | None = None

    @classmethod
    def of_rows(cls, rows: Array, scores: Array, points: Array | None = None) -> Detections:
        """Decode rows that begin with the center and the size of a box."""
        center, half = rows[:, :2], rows[:, 2:4] / 2
        return cls(np.concatenate([center - half, center + half], axis=1), scores, points)


def detector(decode: Callable[[Sequence[Array]], Detections]) -> Task:
    """Make the measure of a detector; it compares detections as sets."""
    return lambda right, found: _compare(decode(right), decode(found))


def _compare(right: Detections, found: Detections) -> float:
    """The share of lost or invented detections; or boxes, scores and points of the others."""
    best, given = right.scores.max(axis=1), found.scores.max(axis=1)
    rows, others = np.flatnonzero(best >= THRESHOLD), np.flatnonzero(given >= THRESHOLD)
    overlap = _overlaps(right.boxes[rows], found.boxes[others])
    labels = found.scores[others].argmax(axis=1)
    overlap *= right.scores[rows][:, labels] >= best[rows, None] - MARGIN
    lost, invented = set(rows.tolist()), set(others.tolist())
    losses = []
    for flat in np.argsort(-overlap, axis=None, kind="stable"):
        at = np.unravel_index(flat, overlap.shape)
        i, j = int(rows[at[0]]), int(others[at[1]])
        if overlap[at] < THRESHOLD:
            break
        if i in lost and j in invented:
            lost.remove(i)
            invented.remove(j)
            size = float(np.linalg.norm(right.boxes[i, 2:] - right.boxes[i, :2]))
            moved = 0.0
            if right.points is not None and found.points is not None:
                moved = _points(right.points[i], found.points[j], size)
            losses.append(max(1 - overlap[at], abs(best[i] - given[j]), moved))
    effects = [float(np.mean(losses))] if losses else [0.0]
    for scores, left in ((best, lost), (given, invented)):
        clear = sum(scores[i] >= THRESHOLD + MARGIN for i in left)
        effects.append(float(clear) / max(1, clear + len(losses)))
    return max(effects)


def _overlaps(left: Array, right: Array) -> Array:
    """Intersection over union of corners, each with each."""
    low = np.maximum(left[:, None, :2], right[None, :, :2])
    high = np.minimum(left[:, None, 2:], right[None, :, 2:])
    common: Array = np.prod(np.clip(high - low, 0, None), axis=-1)
    sizes = [np.prod(np.clip(b[:, 2:] - b[:, :2], 0, None), axis=-1) for b in (left, right)]
    whole = sizes[0][:, None] + sizes[1][None] - common
    share: Array = np.divide(common, whole, out=np.zeros_like(common), where=whole > 0)
    return share


def _points(right: Array, found: Array, size: float) -> float:
    """Distance of visible points by the size of what they are on; or their visibility."""
    far = np.minimum(np.linalg.norm(right[:, :2] - found[:, :2], axis=1) / size, 1)
    if right.shape[1] == 2:
        return float(far.mean())
    seen = right[:, 2] >= THRESHOLD
    return max(float(far[seen].mean()) if seen.any() else 0.0, _flags(right[:, 2], found[:, 2]))


def _flags(right: Array, found: Array) -> float:
    """Share of probabilities on the other side of the threshold, or their mean error."""
    other = ((right >= THRESHOLD) != (found >= THRESHOLD)) & (np.abs(right - found) > MARGIN)
    return float(max(other.mean(), np.abs(right - found).mean()))


@detector
def yolo(outputs: Sequence[Array]) -> Detections:
    """[1, 4 + classes, n]."""
    rows = outputs[0][0].T
    return Detections.of_rows(rows, rows[:, 4:])


@detector
def yolo_v5(outputs: Sequence[Array]) -> Detections:
    """[1, n, 5 + classes], the fifth column the objectness."""
    rows = outputs[0][0]
    return Detections.of_rows(rows, rows[:, 4:5] * rows[:, 5:])


@detector
def end_to_end(outputs: Sequence[Array]) -> Detections:
    """[1, n, 6]: corners, score, one of three classes."""
    rows = outputs[0][0]
    return Detections(rows[:, :4], rows[:, 4:5] * (np.round(rows[:, 5:]) == np.arange(3)))


@detector
def two_outputs(outputs: Sequence[Array]) -> Detections:
    """Corners [1, n, 4] and scores [1, n, classes]."""
    return Detections(outputs[0][0], outputs[1][0])


@detector
def pose(outputs: Sequence[Array]) -> Detections:
    """[1, 56, n]: box, score, 17 points with visibility."""
    rows = outputs[0][0].T
    return Detections.of_rows(rows, rows[:, 4:5], rows[:, 5:].reshape(-1, 17, 3))


@detector
def faces(outputs: Sequence[Array]) -> Detections:
    """[1, n, 15]: box, five points, score."""
    rows = outputs[0][0]
    return Detections.of_rows(rows, rows[:, 14:], rows[:, 4:14].reshape(-1, 5, 2))


def keypoints(right: Sequence[Array], found: Sequence[Array]) -> float:
    """Points of one body [1, n, 3], by its extent."""
    size = np.linalg.norm(np.ptp(right[0][0, :, :2], axis=0))
    return _points(right[0][0], found[0][0], float(size))


def probability(right: Sequence[Array], found: Sequence[Array]) -> float:
    """Probabilities, each by itself."""
    return _flags(right[0], found[0])


def probabilities(right: Sequence[Array], found: Sequence[Array]) -> float:
    """Probabilities of classes: the largest error, and the order of classes."""
    return max(float(np.abs(right[0] - found[0]).max()), _order(right[0], found[0]))


def logits(right: Sequence[Array], found: Sequence[Array]) -> float:
    """Scores before a Softmax: the probability that moves elsewhere, and the order of classes."""
    elsewhere = np.abs(_softmax(right[0]) - _softmax(found[0])).sum(axis=-1) / 2
    return max(float(elsewhere.mean()), _order(right[0], found[0]))


def _softmax(x: Array) -> Array:
    x = np.where(x <= SATURATED, -np.inf, x)
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _order(right: Array, found: Array) -> float:
    """Weight of pairs of the best classes in the wrong order: a pair weighs what its gap is."""
    best = np.argsort(-right, axis=-1, kind="stable")[..., :BEST]
    x, y = (np.take_along_axis(each, best, axis=-1) for each in (right, found))
    gaps = x[..., :, None] - x[..., None, :]
    gaps = np.where(x[..., None, :] > MASKED, np.maximum(gaps, 0), 0)
    wrong = y[..., :, None] < y[..., None, :]
    return float(gaps[wrong].sum()) / max(float(gaps.sum()), 1e-300)


def embedding(right: Sequence[Array], found: Sequence[Array]) -> float:
    """One less the cosine."""
    x, y = right[0].ravel(), found[0].ravel()
    norms = float(np.linalg.norm(x) * np.linalg.norm(y))
    return max(0.0, round(1 - float(x @ y) / norms, 12)) if norms else 1.0


def segments(right: Sequence[Array], found: Sequence[Array]) -> float:
    """Share of pixels of another class [1, classes, …], where the right one is clearly so."""
    x, y = right[0], found[0]
    second, best = np.moveaxis(np.sort(x, axis=1)[:, -2:], 1, 0)
    clear = best - second > MARGIN * np.abs(x).max()
    other = (x.argmax(axis=1) != y.argmax(axis=1)) & clear
    return float(np.sum(other)) / max(1.0, float(np.sum(clear)))


def mask(right: Sequence[Array], found: Sequence[Array]) -> float:
    """One less intersection over union of what is over the threshold."""
    x, y = right[0], found[0]
    one, other = x >= THRESHOLD, np.where(np.abs(x - y) <= MARGIN, x, y) >= THRESHOLD
    return 1 - float(np.sum(one & other)) / max(1.0, float(np.sum(one | other)))


def regression(right: Sequence[Array], found: Sequence[Array]) -> float:
    """Mean error of the worst column by its own mean magnitude; a map is one column."""
    x, y = right[0], found[0]
    axes = tuple(range(x.ndim - 1)) if x.ndim < 4 else None
    return float(np.max(np.abs(x - y).mean(axis=axes) / np.abs(x).mean(axis=axes)))


def labels(right: Sequence[Array], found: Sequence[Array]) -> float:
    """Share of integers, booleans or strings that differ."""
    return float(np.mean(right[0] != found[0]))
