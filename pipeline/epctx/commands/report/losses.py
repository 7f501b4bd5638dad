"""What a model lost by being quantized: a plot of its tensors, the worst of them, what to do."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from msgspec import Struct

from epctx.quantization.report import QuantizeReport, TensorLoss
from epctx.text import size_words

ROWS: Final = 20
"""Tensors that are shown before a reader asks for more."""
MOST: Final = 1000
"""Tensors that the page has; the report has all."""
WIDTH: Final = 720
HEIGHT: Final = 120
_COLUMNS: Final = 240
_WIDEST: Final = 24
_DECIBELS: Final = (0.0, 100.0)
"""What the plot shows; what is beyond is drawn at its edge."""
_NAMED: Final = 3


class Column(Struct, frozen=True, kw_only=True):
    """Tensors of the plot, in pixels: the first of some that are next to each other."""

    x: float
    width: float
    height: float
    words: str
    output: bool


class Plot(Struct, frozen=True, kw_only=True):
    """Tensors by their loss, the worst first; `words` says the same as text.

    Attributes:
        lines: heights of the lines and what they are at, in decibels.
    """

    columns: tuple[Column, ...]
    lines: tuple[tuple[float, int], ...]
    words: str


class Warned(Struct, frozen=True, kw_only=True):
    """What makes a quantized model worse than it need be, and what to do."""

    what: str
    remedy: str


def summary(found: QuantizeReport) -> str:
    """How a model was quantized, in one line."""
    types = f"activations {found.activations or 'float'}, weights {found.weights}"
    given = f"{found.samples} {'RANDOM ' if found.random else ''}sample{'s' * (found.samples != 1)}"
    calibrated = f"{given}, " if found.activations is not None else ""
    sizes = f"{size_words(found.float_size)} -> {size_words(found.size)}"
    known = [each for each in found.outputs if each.sqnr is not None]
    worst = min(known, key=lambda each: each.sqnr or 0.0, default=None)
    least = "" if worst is None else f", output {worst.name!r} {worst.sqnr:.1f} dB"
    nodes = f"{found.quantized} of {found.nodes} nodes"
    return f"{found.preset}: {types}, {calibrated}{nodes}, {sizes}{least}"


def warned(found: QuantizeReport) -> list[Warned]:
    """What a user should know before the model is used."""
    told: list[Warned] = []
    real = "give inputs like the real ones, some hundred, with `quantize.calibration.files`"
    if found.random and found.activations is not None:
        told.append(Warned(what="its ranges are of RANDOM samples", remedy=real))
    elif found.samples == 1:
        told.append(Warned(what="its ranges are of a single sample", remedy=real))
    if found.limited and found.range_floor is None:
        told.append(
            Warned(
                what=f"masks leave nothing of the other values of {named(found.limited)}",
                remedy="set `quantize.range_floor: -100`",
            )
        )
    return told


def named(names: Sequence[str]) -> str:
    """The first of some names."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(map(repr, names[:_NAMED]))}{more}"


def rows(found: QuantizeReport) -> tuple[TensorLoss, ...]:
    """Its tensors, the worst first; outputs among them."""
    every = [each for each in (*found.outputs, *found.tensors) if each.sqnr is not None]
    return tuple(sorted(every, key=lambda each: (each.sqnr or 0.0, each.name)))


def plot(found: QuantizeReport) -> Plot | None:
    """Its tensors by their loss; None: there is nothing to draw."""
    return drawn(rows(found), {each.name for each in found.outputs})


def drawn(every: Sequence[TensorLoss], outputs: Set[str]) -> Plot | None:
    """Tensors of which the loss is known, in this order; None: there are none."""
    if not every:
        return None
    step = -(-len(every) // _COLUMNS)
    stretches = [every[start : start + step] for start in range(0, len(every), step)]
    width = min(WIDTH / len(stretches), _WIDEST)
    by_loss = sorted(every, key=lambda each: each.sqnr or 0.0)
    return Plot(
        columns=tuple(
            _column(number * width, width, stretch, outputs)
            for number, stretch in enumerate(stretches)
        ),
        lines=tuple((round(HEIGHT - _height(level), 1), level) for level in (20, 40, 60, 80)),
        words=f"{len(every):,} tensors from {by_loss[0].sqnr:.1f} dB ({by_loss[0].name}) "
        f"to {by_loss[-1].sqnr:.1f} dB",
    )


def _column(x: float, width: float, stretch: Sequence[TensorLoss], outputs: Set[str]) -> Column:
    shown = next((each for each in stretch if each.name in outputs), stretch[0])
    more = f" and {len(stretch) - 1} more" if len(stretch) > 1 else ""
    return Column(
        x=round(x, 2),
        width=round(max(width - 1, width / 2), 2),
        height=round(max(_height(shown.sqnr or 0.0), 1.0), 1),
        words=f"{shown.name} ({shown.op_type or 'weight'}): {shown.sqnr:.1f} dB{more}",
        output=shown.name in outputs,
    )


def _height(decibels: float) -> float:
    least, most = _DECIBELS
    return HEIGHT * (min(max(decibels, least), most) - least) / (most - least)
