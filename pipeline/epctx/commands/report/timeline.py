"""When each stage ran: a line for each model and session group, bars in per cent of the build."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from epctx.commands.report.tables import label
from epctx.engine.report import BuildReport, StageTime

STAGES: Final = (
    *("load", "optimize", "quantize", "source", "partition"),
    *("compile", "dump", "verify", "compose"),
)
_STEPS: Final = (1, 2, 5, 10)
_TICKS: Final = 8
"""At most; with one more at 0."""


class Bar(Struct, frozen=True, kw_only=True):
    """A stage's time: `start` and `width` in per cent."""

    time: StageTime
    start: float
    width: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.time.end - self.time.start


class Line(Struct, frozen=True, kw_only=True):
    """A model or session group of a group, on one machine; None: on the one that built."""

    machine: str | None
    group: str
    subject: str
    bars: tuple[Bar, ...]


class Tick(Struct, frozen=True, kw_only=True):
    """A mark on the axis, at `place` per cent."""

    seconds: float
    place: float


class Timeline(Struct, frozen=True, kw_only=True):
    """All lines; `totals`: seconds by stage, of all lines together."""

    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]
    totals: dict[str, float]


def timeline(report: BuildReport) -> Timeline | None:
    """The timeline of a build; None: nothing ran."""
    times = [(g, time) for g in report.groups for time in g.stages]
    if not times:
        return None
    whole = max(report.seconds, *(time.end for _, time in times)) or 1.0
    lines: dict[tuple[str, str, str], list[Bar]] = {}
    totals = dict.fromkeys(STAGES, 0.0)
    for group, time in times:
        start, width = 100 * time.start / whole, 100 * (time.end - time.start) / whole
        bar = Bar(time=time, start=round(start, 3), width=round(max(width, 0.15), 3))
        lines.setdefault((time.machine or "", label(group), time.subject), []).append(bar)
        totals[time.stage] = totals.get(time.stage, 0.0) + bar.seconds
    return Timeline(
        lines=tuple(
            Line(machine=machine or None, group=group, subject=subject, bars=tuple(bars))
            for (machine, group, subject), bars in sorted(
                lines.items(), key=lambda each: each[0][0]
            )
        ),
        ticks=_ticks(whole),
        totals={stage: seconds for stage, seconds in totals.items() if seconds},
    )


def _ticks(whole: float) -> tuple[Tick, ...]:
    """Marks at round numbers of seconds."""
    power = 0.001
    while power * 10 * _TICKS < whole:
        power *= 10
    step = next(power * n for n in _STEPS if power * n * _TICKS >= whole)
    count = int(whole / step)
    return tuple(
        Tick(seconds=round(step * n, 3), place=round(100 * step * n / whole, 3))
        for n in range(count + 1)
    )
