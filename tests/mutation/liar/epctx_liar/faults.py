"""Faults of outputs: each gives what a broken compiler, driver or chip gives in place of these.

A fault is a function of the right output, and returns None where it does not apply: integers are
not rounded, and one row has no order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
MASKED: Final = -1e8
"""Values from here down are masks: nothing else in the models of the tests comes near."""


@dataclass(frozen=True)
class Place:
    """The part of an output that some faults are about.

    Attributes:
        axis: axis of channels, columns or classes.
        start: first channel of the part.
        stop: end of the part, exclusive; 0 is the end of the axis.
    """

    axis: int = -1
    start: int = 0
    stop: int = 0

    @property
    def part(self) -> slice:
        """The channels of the part."""
        return slice(self.start, self.stop or None)

    def rows(self, x: Array) -> int:
        """Return the longest axis beside the channels: anchors, positions or the batch."""
        others = [axis for axis in range(x.ndim) if axis != self.axis % x.ndim]
        return max(others, key=lambda axis: x.shape[axis], default=0)


Fault = Callable[[Array, Place], Array | None]


def kind(x: Array) -> str:
    """Return the kind of an output's type, as numpy calls it; bfloat16 is floating, too."""
    return "f" if x.dtype == ml_dtypes.bfloat16 else x.dtype.kind


def whole(kinds: str, change: Fault) -> Fault:
    """Make a fault of outputs of some kinds of types; it gets floats in float64."""

    def fault(x: Array, place: Place) -> Array | None:
        if kind(x) not in kinds:
            return None
        changed = change(x.astype(np.float64) if kind(x) == "f" else x, place)
        with np.errstate(over="ignore"):
            return None if changed is None else changed.astype(x.dtype)

    return fault


def part(change: Callable[[Array], Array], channels: slice | None = None) -> Fault:
    """Make a fault of some channels, those of the place by default; not of a whole output."""

    def fault(x: Array, place: Place) -> Array | None:
        changed = x.copy()
        view = np.moveaxis(changed, place.axis, -1)[..., channels or place.part]
        if view.size == x.size:
            return None
        view[...] = change(view.copy())
        return changed

    return whole("f", fault)


def rows(kinds: str, change: Callable[[Array], Array]) -> Fault:
    """Make a fault of anchors, positions or rows, which it gets in the first axis."""

    def fault(x: Array, place: Place) -> Array | None:
        axis = place.rows(x)
        if x.shape[axis] < 2:
            return None
        return np.moveaxis(change(np.moveaxis(x, axis, 0)), 0, axis)

    return whole(kinds, fault)


def element(kinds: str, change: Callable[[Any, Array], Any]) -> Fault:
    """Make a fault of one element, which is made from it and all of the output."""

    def fault(x: Array, place: Place) -> Array:
        changed = x.copy()
        changed.flat[x.size // 3] = change(x.flat[x.size // 3], x)
        return changed

    return whole(kinds, fault)


def scale(x: Array) -> float:
    """Return the largest magnitude that is no mask."""
    return float(np.abs(x[x > MASKED]).max(initial=0.0))


def plus(x: Array, noise: npt.ArrayLike) -> Array:
    """Add noise, in parts of the output's scale, to all but masks."""
    return np.where(x > MASKED, x + scale(x) * np.asarray(noise), x)


def drawn(x: Array) -> Array:
    """Draw a normal number for each element, the same ones for all outputs of a shape."""
    return np.random.default_rng(x.shape).standard_normal(x.shape)


def rounded(x: Array, dtype: npt.DTypeLike) -> Array:
    """Round the output to another floating-point type."""
    with np.errstate(over="ignore"):
        return x.astype(dtype).astype(np.float64)


def to_int8(x: Array, place: Place) -> Array:
    """Quantize the output by one scale to 255 steps."""
    step = scale(x) / 127 or 1.0
    return np.clip(np.round(x / step), -128, 127) * step


def exchanged(x: Array, place: Place) -> Array | None:
    """Exchange the first channel of the part with the one before it, or after it."""
    if x.shape[place.axis] < 2:
        return None
    order = np.arange(x.shape[place.axis])
    one, other = place.start, place.start - 1 if place.start else 1
    order[[one, other]] = other, one
    return np.take(x, order, axis=place.axis)


def channels_last(x: Array, place: Place) -> Array | None:
    """Give channels last in the shape of channels first, or the other way round."""
    if x.ndim < 3:
        return None
    last = place.axis % x.ndim == x.ndim - 1
    other = np.moveaxis(x, -1, 1) if last else np.moveaxis(x, 1, -1)
    return np.ascontiguousarray(other).reshape(x.shape)


def best_exchanged(x: Array, place: Place) -> Array:
    """Exchange the two largest scores of each row of the part."""
    changed = x.copy()
    scores = np.moveaxis(changed, place.axis, -1)[..., place.part]
    order = np.argsort(scores, axis=-1)[..., -2:]
    values = np.take_along_axis(scores, order, axis=-1)
    np.put_along_axis(scores, order, values[..., ::-1], axis=-1)
    return changed


def too_probable(x: Array, place: Place) -> Array:
    """Add 0.05 to the probabilities of the part."""
    changed = x.copy()
    channels = np.moveaxis(changed, place.axis, -1)
    channels[..., place.part] = np.minimum(channels[..., place.part] + 0.05, 1.0)
    return changed


OF_PROBABILITIES: Final = "probability + 0.05"
OF_CLASSES: Final = "best two exchanged"
OF_RUNS: Final = ("output of the run before", "output of the first run")
FAULTS: Final[Mapping[str, Fault]] = {
    "zeroed": whole("f", lambda x, place: 0 * x),
    "first channel zeroed": part(lambda part: 0 * part, slice(0, 1)),
    "last channel zeroed": part(lambda part: 0 * part, slice(-1, None)),
    "part zeroed": part(lambda part: 0 * part),
    "halved": whole("f", lambda x, place: x / 2),
    "part halved": part(lambda part: part / 2),
    "doubled": whole("f", lambda x, place: x * 2),
    "part doubled": part(lambda part: part * 2),
    "times 1.1": whole("f", lambda x, place: x * 1.1),
    "times 1.001": whole("f", lambda x, place: x * 1.001),
    "negated": whole("f", lambda x, place: -x),
    "part negated": part(lambda part: -part),
    "shifted": rows("fiubO", lambda rows: np.roll(rows, 1, axis=0)),
    "part shifted": part(lambda part: np.roll(part, 1, axis=int(np.argmax(part.shape[:-1])))),
    "channels exchanged": whole("fiubO", exchanged),
    "channels last": whole("fiubO", channels_last),
    "batch permuted": whole("fiubO", lambda x, place: x[::-1] if len(x) > 1 else None),
    "rows reversed": rows("fiubO", lambda rows: rows[::-1]),
    "last row lost": rows("f", lambda rows: np.concatenate([rows[:-1], 0 * rows[-1:]])),
    "offset of 5 %": whole("f", lambda x, place: plus(x, 0.05)),
    "noise of 1 %": whole("f", lambda x, place: plus(x, 0.01 * drawn(x))),
    "noise of 5 %": whole("f", lambda x, place: plus(x, 0.05 * drawn(x))),
    "noise of 20 %": whole("f", lambda x, place: plus(x, 0.2 * drawn(x))),
    "float16": whole("f", lambda x, place: rounded(x, np.float16)),
    "bfloat16": whole("f", lambda x, place: rounded(x, ml_dtypes.bfloat16)),
    "int8": whole("f", to_int8),
    "clipped at half": whole(
        "f", lambda x, place: np.where(x > MASKED, np.clip(x, -scale(x) / 2, scale(x) / 2), x)
    ),
    "NaN at one place": element("f", lambda one, x: np.nan),
    "infinite at one place": element("f", lambda one, x: np.inf),
    "one element wrong": element("f", lambda one, x: scale(x)),
    "every 16th zero": whole(
        "f", lambda x, place: np.where(np.arange(x.size).reshape(x.shape) % 16, x, 0)
    ),
    "small values lost": whole("f", lambda x, place: np.where(np.abs(x) < scale(x) / 100, 0, x)),
    "float16 subnormals lost": whole("f", lambda x, place: np.where(np.abs(x) < 2**-14, 0, x)),
    OF_CLASSES: whole("f", best_exchanged),
    "mask lost": whole("f", lambda x, place: np.where(x > MASKED, x, 0)),
    OF_PROBABILITIES: whole("f", too_probable),
    "integers + 1": whole("iu", lambda x, place: x + 1),
    "one integer + 1": element("iu", lambda one, x: one + 1),
    "booleans inverted": whole("b", lambda x, place: ~x),
    "one boolean inverted": element("b", lambda one, x: not one),
    "one string changed": element("O", lambda one, x: f"{one[:-1]}?"),
}
"""Faults by name; `Liar` adds OF_RUNS."""
NAMES: Final = (*FAULTS, *OF_RUNS)
OF_LATER_RUNS: Final = ("other noise in each later run", "wrong from the third run on")
"""Faults that one run of an input set does not show; docs/numbers.md has a table of the others."""


@dataclass
class Liar:
    """Applies a fault to the outputs of one model, run after run.

    Attributes:
        fault: one of NAMES or OF_LATER_RUNS; "none" changes nothing.
        place: the part that the fault is about.
        output: index of the output that is changed.
    """

    fault: str
    place: Place
    output: int = 0
    _before: Array | None = None
    _runs: int = 0

    def lie(self, outputs: list[Array]) -> list[Array] | None:
        """Return the outputs of one run with the fault, or None if it does not apply."""
        if self.fault == "none":
            return outputs
        right = outputs[self.output]
        self._runs += 1
        if self.fault in OF_LATER_RUNS:
            return [*outputs[: self.output], self._later(right), *outputs[self.output + 1 :]]
        stale = self.fault in OF_RUNS
        changed = self._stale(right) if stale else FAULTS[self.fault](right, self.place)
        if changed is None:
            return None
        return [*outputs[: self.output], changed, *outputs[self.output + 1 :]]

    def _stale(self, right: Array) -> Array:
        """Return the output of an earlier run; that of no run is right, or an empty buffer."""
        before, of_first = self._before, self.fault == "output of the first run"
        if before is None or not of_first:
            self._before = right
        if before is not None:
            return before
        return right if of_first or kind(right) == "O" else np.zeros_like(right)

    def _later(self, right: Array) -> Array:
        """Return the output as it is in a first run, and otherwise in later ones."""
        if self.fault == "wrong from the third run on":
            return right if self._runs < 3 else -right
        noise = np.random.default_rng(self._runs).standard_normal(right.shape)
        return right if self._runs < 2 else plus(right, noise / 10).astype(right.dtype)
