"""Figures, tables and timeline of a report's page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Final

from msgspec import Struct

from epctx.cache.action import RemoteReport
from epctx.engine.report import ActionReport, BuildReport, GroupReport, StageTime
from epctx.files.outputs import CONTEXT_SUFFIX
from epctx.graph.model import Decline, Refusal
from epctx.stages.report import ModelReport
from epctx.text import size_words, time_words
from epctx.verification.device_results import DeviceModel, DeviceResults
from epctx.verification.findings import (
    DECADES,
    Comparison,
    Finding,
    OutputNumbers,
    Sessions,
    VerifyReport,
    error_words,
    largest_error,
)

NODES_SHOWN = 5
"""Number of node names in a row."""

ROWS: Final = 1000
"""Most rows in a table of numbers or checks; the report has the rest."""


class LeftRow(Struct, frozen=True, kw_only=True):
    """Nodes of one op type that an EP left for one reason; `location` is that of the first."""

    op_type: str
    ep: str
    refusal: Refusal
    count: int
    names: tuple[str, ...]
    location: str


SESSIONS: Final[Mapping[Sessions, str]] = {
    "generating": "generating sessions",
    "files": "loaded from files",
    "pieces": "the piece by itself",
    "chain": "the pieces one after the other",
    "quantized": "quantized model",
    "device": "device",
}
"""Labels of the sessions that computed an output."""


class NumbersRow(Struct, frozen=True, kw_only=True):
    """Output of a model, with the numbers of its worst input set.

    Attributes:
        group: `group@target`.
        sets: number of comparisons, over input sets and kinds of sessions.
        used: largest error as a share of the tolerance; None if unknown.
    """

    group: str
    worst: OutputNumbers
    sets: int
    used: float | None


class CheckRow(Struct, frozen=True, kw_only=True):
    """Finding of the group `group@target`."""

    group: str
    finding: Finding


def left_rows(model: ModelReport, *, every: bool = False) -> tuple[LeftRow, ...]:
    """Rows of nodes left to the default EP, most frequent first; `every`: one row per node."""
    alike: dict[tuple[str, str, Refusal, str], list[Decline]] = {}
    for each in model.declined:
        for ep, refusal in each.by_provider():
            alike.setdefault((each.kind, ep, refusal, each.node * every), []).append(each)
    rows = (
        LeftRow(
            op_type=op_type,
            ep=ep,
            refusal=refusal,
            count=len(nodes),
            names=tuple(node.node for node in nodes[:NODES_SHOWN]),
            location=nodes[0].location,
        )
        for (op_type, ep, refusal, _), nodes in alike.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.count))


def number_rows(groups: Iterable[GroupReport]) -> tuple[NumbersRow, ...]:
    """Every output of every model, those nearest to or beyond their tolerance first.

    Outputs of single pieces and of pieces run in sequence have rows of their own.
    """
    rows: list[NumbersRow] = []
    for group in groups:
        outputs: dict[tuple[str, ...], list[OutputNumbers]] = {}
        for each in group.verify.numbers if group.verify else ():
            kind = each.sessions if each.sessions in ("pieces", "chain") else ""
            outputs.setdefault((each.model, each.output, each.right, kind), []).append(each)
        for results in outputs.values():
            worst = max(results, key=_severity)
            rows.append(
                NumbersRow(
                    group=group_label(group),
                    worst=worst,
                    sets=len(results),
                    used=tolerance_used(worst),
                )
            )
    return tuple(sorted(rows, key=lambda row: _severity(row.worst), reverse=True))


def check_rows(groups: Iterable[GroupReport]) -> tuple[CheckRow, ...]:
    """Every finding: failed ones first, then those that could not be checked."""
    order = ("fail", "not checkable", "pass")
    rows = (
        CheckRow(group=group_label(group), finding=finding)
        for group in groups
        for finding in (group.verify.findings if group.verify else ())
    )
    return tuple(sorted(rows, key=lambda row: order.index(row.finding.outcome)))


def group_label(group: GroupReport) -> str:
    """Label of a group: `group@target`."""
    return f"{group.group}@{group.target}"


def tolerance_used(numbers: OutputNumbers) -> float | None:
    """Largest share of a tolerance that an output's error uses: 1 is all of it, None is unknown."""
    shares = list(_tolerance_shares(numbers))
    return max(shares) if shares else None


def _tolerance_shares(numbers: OutputNumbers) -> Iterator[float]:
    comparison, allowed = numbers.comparison, numbers.tolerance
    for error, most in (
        (comparison.max_abs, allowed.max_abs),
        (comparison.max_rel, allowed.max_rel),
        (
            None if comparison.cosine is None else 1 - comparison.cosine,
            None if allowed.cosine_min is None else 1 - allowed.cosine_min,
        ),
    ):
        if error is not None and most:
            yield max(error, 0.0) / most


def _severity(numbers: OutputNumbers) -> tuple[bool, float, float]:
    comparison = numbers.comparison
    return (
        not numbers.passed,
        tolerance_used(numbers) or 0.0,
        comparison.max_rel or comparison.max_abs or 0.0,
    )


class Figure(Struct, frozen=True, kw_only=True):
    """Figure of the first row. `tone` is good, bad, warn, or empty."""

    name: str
    value: str
    note: str = ""
    tone: str = ""


class Share(Struct, frozen=True, kw_only=True):
    """Nodes that an EP runs. `ep` is the index in the list of EPs; -1 is the default EP."""

    ep: int
    alias: str
    nodes: int
    start: float
    percent: float


class Cell(Struct, frozen=True, kw_only=True):
    """Group on one target. `shares` counts the nodes of all models together."""

    group: GroupReport
    shares: tuple[Share, ...]
    percent: str
    size: int
    error: str


class Row(Struct, frozen=True, kw_only=True):
    """Group on all targets; a cell is None if the target does not build the group."""

    group: str
    cells: tuple[Cell | None, ...]


def eps(report: BuildReport) -> tuple[str, ...]:
    """Aliases of all EPs that run nodes."""
    parts = (p for g in report.groups for m in g.models for p in m.partitions)
    return tuple(dict.fromkeys(part.provider for part in parts))


def key_figures(report: BuildReport, saved: int | None) -> tuple[Figure, ...]:
    """Figures of the first row. `saved`: bytes saved by shared weights; None if unknown."""
    # The models of a composition are counted in their groups.
    models = [m for group in report.groups if group.composition is None for m in group.models]
    files = [file for group in report.groups for file in group.files]
    states = Counter(group.state for group in report.groups)
    failed = states["failed"] + states["skipped"]
    figures = [
        Figure(
            name="Groups",
            value=str(len(report.groups)),
            note=", ".join(f"{count} {state}" for state, count in states.items()),
            tone="bad" if failed else "good",
        )
    ]
    if models:
        nodes, on_eps = sum(m.nodes for m in models), sum(map(_nodes_on_eps, models))
        figures.append(
            Figure(
                name="On EPs",
                value=percent(on_eps, nodes),
                note=f"{on_eps:,} of {nodes:,} nodes in {_count(len(models), 'model')}",
                tone="warn" if on_eps < nodes else "good",
            )
        )
        figures.append(_checks(report))
        figures.append(_error(report))
    if files:
        size = sum(file.size for file in files)
        note = _count(len(files), "file")
        note += f"; sharing saved {size_words(saved)}" if saved else ""
        figures.append(Figure(name="Size", value=size_words(size), note=note))
    if report.remote is not None:
        built = sum(each.ran for group in report.groups for each in group.actions)
        note = f"{built} built; {size_words(report.remote.fetched)} fetched"
        note += f", {report.remote.pushed} pushed" if report.remote.pushed else ""
        results = _count(report.remote.records, "result")
        tone = "warn" if report.remote.refused else ""
        figures.append(Figure(name="Shared cache", value=results, note=note, tone=tone))
    return (*figures, Figure(name="Time", value=duration(report.seconds), note="wall clock"))


def origins(actions: Iterable[ActionReport]) -> str:
    """Count action results by origin: `2 built, 1 local, 3 remote`."""
    counts = Counter(_origin(each) for each in actions)
    return ", ".join(
        f"{counts[name]} {name}" for name in ("built", "local", "remote") if counts[name]
    )


def _origin(action: ActionReport) -> str:
    if action.ran:
        return "built"
    return "local" if action.came_from in (None, "local") else "remote"


def remote_words(remote: RemoteReport) -> str:
    """Summary of the shared cache's use, in a line."""
    words = [
        f"{_count(remote.records, 'result')} and {_count(remote.objects, 'file')} "
        f"({size_words(remote.fetched)}) came from it"
    ]
    words += [f"{remote.pushed} pushed"] if remote.pushed else []
    words += [f"{remote.not_pushed} not pushed"] if remote.not_pushed else []
    words += [f"{count} x {why}" for why, count in remote.refused.items()]
    return "; ".join(words)


def group_matrix(
    report: BuildReport, all_eps: Sequence[str]
) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """Names of the targets, and a row for each group."""
    targets = tuple(dict.fromkeys(group.target for group in report.groups))
    names = dict.fromkeys(group.group for group in report.groups)
    groups = {(each.group, each.target): each for each in report.groups}
    return targets, tuple(
        Row(
            group=name,
            cells=tuple(
                cell(groups[name, target], all_eps) if (name, target) in groups else None
                for target in targets
            ),
        )
        for name in names
    )


def shares(models: Iterable[ModelReport], all_eps: Sequence[str]) -> tuple[Share, ...]:
    """Share of each EP in the given models, the default EP last."""
    counts: Counter[int] = Counter()
    total = 0
    for model in models:
        total += model.nodes
        for part in model.partitions:
            counts[all_eps.index(part.provider)] += part.nodes
    order = [*sorted(counts), -1]
    counts[-1] = total - sum(counts.values())
    segments: list[Share] = []
    start = 0.0
    for ep in order:
        if counts[ep] > 0:
            width = 100 * counts[ep] / total
            alias = all_eps[ep] if ep >= 0 else "default EP"
            segments.append(
                Share(ep=ep, alias=alias, nodes=counts[ep], start=start, percent=round(width, 3))
            )
            start = round(start + width, 3)
    return tuple(segments)


def percent(part: int, whole: int) -> str:
    """Percentage; shows 100 % and 0 % only for exact values."""
    if part == whole:
        return "100 %"
    return f"{min(max(100 * part / whole, 0.1 if part else 0.0), 99.9):.1f} %"


def duration(seconds: float) -> str:
    """Duration in words."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    return f"{seconds:.1f} s" if seconds < 120 else time_words(seconds)


def cell(group: GroupReport, all_eps: Sequence[str]) -> Cell:
    """Summary of a group, with its models' shares over `all_eps`."""
    return Cell(
        group=group,
        shares=shares(group.models, all_eps),
        percent=percent(sum(map(_nodes_on_eps, group.models)), sum(m.nodes for m in group.models)),
        size=sum(file.size for file in group.files),
        error=error_words(largest_error(group.verify.numbers if group.verify else ())),
    )


def _checks(report: BuildReport) -> Figure:
    outcomes = Counter(f.outcome for g in report.groups if g.verify for f in g.verify.findings)
    failed, open_ones = outcomes["fail"], outcomes["not checkable"]
    notes = [f"{failed} failed"] if failed else []
    notes += [f"{open_ones} not checkable"] if open_ones else []
    unmade = sum(
        group.state in ("failed", "skipped") and not (group.verify and group.verify.findings)
        for group in report.groups
    )
    notes += [f"{_count(unmade, 'group')} not checked"] if unmade else []
    tone = "bad" if failed else "warn" if notes else "good"
    note = ", ".join(notes) or "all that were made"
    return Figure(name="Checks passed", value=str(outcomes["pass"]), note=note, tone=tone)


def _error(report: BuildReport) -> Figure:
    numbers = [n for g in report.groups if g.verify for n in g.verify.numbers]
    worst = largest_error(numbers)
    if worst is None:
        return Figure(name="Largest error", value="not run", note="no numbers", tone="warn")
    bad = sum(not each.passed for each in numbers)
    note = f"{bad} beyond the tolerance" if bad else "relative, within the tolerance"
    unmade = sum(not (group.verify and group.verify.numbers) for group in report.groups)
    note += f"; {_count(unmade, 'group')} not compared" if unmade else ""
    tone = "bad" if bad else "warn" if unmade else "good"
    return Figure(name="Largest error", value=error_words(worst), note=note, tone=tone)


def _nodes_on_eps(model: ModelReport) -> int:
    return sum(part.nodes for part in model.partitions)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


DOING: Final = {
    "load": "loading",
    "optimize": "optimizing",
    "quantize": "quantizing",
    "source": "running the source models",
    "partition": "partitioning",
    "compile": "compiling",
    "dump": "writing",
    "verify": "verifying",
    "compose": "composing",
}
_STAGES_NAMED: Final = 4
_LEAST_SHARE: Final = 0.01
"""Smallest share of the total time for which a stage is named."""


def time_sentence(report: BuildReport) -> str:
    """Sentence with the time of each stage, the longest first.

    Stages that ran at the same time may together take longer than the build.
    """
    stages: dict[str, dict[str, float]] = {}
    for group in report.groups:
        for time in group.stages:
            took = stages.setdefault(time.stage, {})
            took[group_label(group)] = took.get(group_label(group), 0.0) + time.end - time.start
    longest = sorted(stages, key=lambda stage: -sum(stages[stage].values()))
    work, wall = sum(sum(took.values()) for took in stages.values()), report.seconds
    if not work:
        return f"{duration(wall)}: no stage had to run."
    whole = max(work, wall)
    large = [s for s in longest[:_STAGES_NAMED] if sum(stages[s].values()) >= _LEAST_SHARE * whole]
    parts = [_doing(stage, stages[stage], whole, len(report.groups)) for stage in large]
    rest = whole - sum(sum(stages[stage].values()) for stage in large)
    if rest >= _LEAST_SHARE * whole:
        parts.append(f"{duration(rest)} for the rest")
    head = duration(wall)
    if work > wall:
        head += f" in which {duration(work)} of work was done, several stages at a time"
    return f"{head}: {', '.join(parts)}."


def _doing(stage: str, groups: dict[str, float], whole: float, group_count: int) -> str:
    """Describe a stage: its time, its share, and the group that took most of it."""
    seconds = sum(groups.values())
    words, share = (
        f"{duration(seconds)} {DOING.get(stage, stage)}",
        f"{100 * seconds / whole:.0f} %",
    )
    name = max(groups, key=lambda group: groups[group])
    if group_count > 1 and len(groups) == 1:
        return f"{words} {name} ({share})"
    most = f", most of it {name}" if group_count > 1 and 2 * groups[name] > seconds else ""
    return f"{words} ({share}{most})"


STAGES: Final = (
    *("load", "optimize", "quantize", "source", "partition"),
    *("compile", "dump", "verify", "compose"),
)
_STEPS: Final = (1, 2, 5, 10)
_TICKS: Final = 8
"""Most tick marks on the time axis, not counting the one at 0."""


class Bar(Struct, frozen=True, kw_only=True):
    """Stage in the timeline: `start` and `width` are in per cent."""

    time: StageTime
    start: float
    width: float

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.time.end - self.time.start


class Line(Struct, frozen=True, kw_only=True):
    """Model or session group on one machine; `machine` is None for the building host."""

    machine: str | None
    group: str
    subject: str
    bars: tuple[Bar, ...]


class Tick(Struct, frozen=True, kw_only=True):
    """Tick mark on the time axis, at `place` per cent."""

    seconds: float
    place: float


class Timeline(Struct, frozen=True, kw_only=True):
    """All lines of the timeline; `totals` has the seconds per stage over all lines."""

    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]
    totals: dict[str, float]


def timeline(report: BuildReport) -> Timeline | None:
    """Make the timeline of a build; None if no stage ran."""
    times = [(g, time) for g in report.groups for time in g.stages]
    if not times:
        return None
    whole = max(report.seconds, *(time.end for _, time in times)) or 1.0
    lines: dict[tuple[str, str, str], list[Bar]] = {}
    totals = dict.fromkeys(STAGES, 0.0)
    for group, time in times:
        start, width = 100 * time.start / whole, 100 * (time.end - time.start) / whole
        bar = Bar(time=time, start=round(start, 3), width=round(max(width, 0.15), 3))
        lines.setdefault((time.machine or "", group_label(group), time.subject), []).append(bar)
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
    """Tick marks at round numbers of seconds."""
    power = 0.001
    while power * 10 * _TICKS < whole:
        power *= 10
    step = next(power * n for n in _STEPS if power * n * _TICKS >= whole)
    count = int(whole / step)
    return tuple(
        Tick(seconds=round(step * n, 3), place=round(100 * step * n / whole, 3))
        for n in range(count + 1)
    )


HISTOGRAM_NAMES: Final = ("equal", *(f"below {most:g}" for most in DECADES), "beyond")
"""Names of the bins of `Comparison.histogram`: an element's error over its scale."""
HISTOGRAM_HEIGHT: Final = 22
_PITCH: Final = 8
HISTOGRAM_WIDTH: Final = _PITCH * len(HISTOGRAM_NAMES)


class Column(Struct, frozen=True, kw_only=True):
    """Column for one decade, in pixels; `beyond` if all of its errors exceed the tolerance."""

    words: str
    x: int
    height: float
    beyond: bool


class Histogram(Struct, frozen=True, kw_only=True):
    """Histogram of an output; `words` has the same content as text."""

    columns: tuple[Column, ...]
    words: str


def histogram(comparison: Comparison, most: float | None) -> Histogram | None:
    """Make the histogram of an output. Heights are logarithmic, so that rare errors are visible.

    Args:
        most: tolerance relative to an element's scale; None if that tolerance does not apply.
    """
    counts = comparison.histogram
    if not any(counts):
        return None
    bins = tuple(
        (f"{count:,} {name}", index, count)
        for index, (name, count) in enumerate(zip(HISTOGRAM_NAMES, counts, strict=True))
        if count
    )
    return Histogram(
        columns=tuple(
            Column(
                words=words,
                x=_PITCH * index,
                height=_height(count, counts),
                beyond=most is not None and index > 0 and _least(index) >= most,
            )
            for words, index, count in bins
        ),
        words=f"Of {sum(counts):,} elements: " + ", ".join(words for words, _, _ in bins),
    )


def _height(count: int, counts: Sequence[int]) -> float:
    return round(2 + (HISTOGRAM_HEIGHT - 2) * math.log1p(count) / math.log1p(max(counts)), 1)


def _least(index: int) -> float:
    """Smallest error that a bin counts."""
    return DECADES[index - 2] if index > 1 else 0.0


class OnDevice(Struct, frozen=True, kw_only=True):
    """Device results, with the failures of each model of the build, and other failures."""

    results: DeviceResults
    models: Mapping[str, tuple[DeviceModel, list[str]]]
    failed: list[str]


def device_section(results: DeviceResults, judged: VerifyReport) -> OnDevice:
    """Section of the page about a device; `judged` has the verdicts by folder of the build."""
    ran = {each.model: each for each in results.models}
    models, others = {}, []
    for folder in judged.folders:
        place = PurePath(folder.folder)
        failed = [each for each in folder.findings if each.outcome == "fail"]
        for file in folder.models:
            name = f"{place.parent.name}/{place.name}/{file.removesuffix(CONTEXT_SUFFIX)}"
            messages = [each.message for each in failed if each.subject == file]
            models[name] = (ran.get(name, DeviceModel(model=name)), messages)
        others += [f"{place.name}: {f.message}" for f in failed if f.subject not in folder.models]
    return OnDevice(results=results, models=models, failed=others)


def milliseconds(seconds: float | None) -> str:
    """Inference time in words."""
    return "not run" if seconds is None else f"{1000 * seconds:,.3f} ms"
