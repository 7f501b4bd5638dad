"""What a report comes to: its figures at a glance, and its groups over targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from epctx.cache.action import RemoteReport
from epctx.engine.report import ActionReport, BuildReport, GroupReport
from epctx.stages.report import ModelReport
from epctx.text import size_words, time_words
from epctx.verification.findings import error_words, largest_error


class Figure(Struct, frozen=True, kw_only=True):
    """One figure of the first row. `tone`: good, bad, warn, or empty."""

    name: str
    value: str
    note: str = ""
    tone: str = ""


class Share(Struct, frozen=True, kw_only=True):
    """What an EP took of something. `ep`: its place in the list of EPs, -1: the default EP."""

    ep: int
    alias: str
    nodes: int
    start: float
    percent: float


class Cell(Struct, frozen=True, kw_only=True):
    """A group for a target. `shares`: of its nodes, all models together."""

    group: GroupReport
    shares: tuple[Share, ...]
    percent: str
    size: int
    error: str


class Row(Struct, frozen=True, kw_only=True):
    """A group over all targets; None: the target does not build it."""

    group: str
    cells: tuple[Cell | None, ...]


def eps(report: BuildReport) -> tuple[str, ...]:
    """Every EP that took something, by its alias."""
    parts = (p for g in report.groups for m in g.models for p in m.partitions)
    return tuple(dict.fromkeys(part.provider for part in parts))


def figures(report: BuildReport, saved: int | None) -> tuple[Figure, ...]:
    """The first row. `saved`: bytes that shared weights did not take, if known."""
    # A composition is made of models that are counted already.
    models = [m for group in report.groups if group.composition is None for m in group.models]
    files = [file for group in report.groups for file in group.files]
    states = Counter(group.state for group in report.groups)
    failed = states["failed"] + states["skipped"]
    told = [
        Figure(
            name="Groups",
            value=str(len(report.groups)),
            note=", ".join(f"{count} {state}" for state, count in states.items()),
            tone="bad" if failed else "good",
        )
    ]
    if models:
        nodes, taken = sum(m.nodes for m in models), sum(map(_taken, models))
        told.append(
            Figure(
                name="On EPs",
                value=percent(taken, nodes),
                note=f"{taken:,} of {nodes:,} nodes in {_count(len(models), 'model')}",
                tone="warn" if taken < nodes else "good",
            )
        )
        told.append(_checks(report))
        told.append(_error(report))
    if files:
        size = sum(file.size for file in files)
        note = _count(len(files), "file")
        note += f"; sharing saved {size_words(saved)}" if saved else ""
        told.append(Figure(name="Size", value=size_words(size), note=note))
    if report.remote is not None:
        built = sum(each.ran for group in report.groups for each in group.actions)
        note = f"{built} built; {size_words(report.remote.fetched)} fetched"
        note += f", {report.remote.pushed} pushed" if report.remote.pushed else ""
        came = _count(report.remote.records, "result")
        tone = "warn" if report.remote.refused else ""
        told.append(Figure(name="Shared cache", value=came, note=note, tone=tone))
    return (*told, Figure(name="Time", value=duration(report.seconds), note="wall clock"))


def origins(actions: Iterable[ActionReport]) -> str:
    """Where what actions made is from: `2 built, 1 local, 3 remote`."""
    found = Counter(_origin(each) for each in actions)
    return ", ".join(
        f"{found[name]} {name}" for name in ("built", "local", "remote") if found[name]
    )


def _origin(action: ActionReport) -> str:
    if action.ran:
        return "built"
    return "local" if action.came_from in (None, "local") else "remote"


def remote_words(told: RemoteReport) -> str:
    """What became of the shared cache, in a line."""
    words = [
        f"{_count(told.records, 'result')} and {_count(told.objects, 'file')} "
        f"({size_words(told.fetched)}) came from it"
    ]
    words += [f"{told.pushed} pushed"] if told.pushed else []
    words += [f"{told.not_pushed} not pushed"] if told.not_pushed else []
    words += [f"{count} x {why}" for why, count in told.refused.items()]
    return "; ".join(words)


def matrix(report: BuildReport, all_eps: Sequence[str]) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """The targets, and each group over them."""
    targets = tuple(dict.fromkeys(group.target for group in report.groups))
    names = dict.fromkeys(group.group for group in report.groups)
    found = {(each.group, each.target): each for each in report.groups}
    return targets, tuple(
        Row(
            group=name,
            cells=tuple(
                cell(found[name, target], all_eps) if (name, target) in found else None
                for target in targets
            ),
        )
        for name in names
    )


def shares(models: Iterable[ModelReport], all_eps: Sequence[str]) -> tuple[Share, ...]:
    """Who took how much of some models, the default EP last."""
    taken: Counter[int] = Counter()
    total = 0
    for model in models:
        total += model.nodes
        for part in model.partitions:
            taken[all_eps.index(part.provider)] += part.nodes
    order = [*sorted(taken), -1]
    taken[-1] = total - sum(taken.values())
    told: list[Share] = []
    start = 0.0
    for ep in order:
        if taken[ep] > 0:
            width = 100 * taken[ep] / total
            alias = all_eps[ep] if ep >= 0 else "default EP"
            told.append(
                Share(ep=ep, alias=alias, nodes=taken[ep], start=start, percent=round(width, 3))
            )
            start = round(start + width, 3)
    return tuple(told)


def percent(part: int, whole: int) -> str:
    """A share; what is not all of it never says 100 %, nor what is some of it 0 %."""
    if part == whole:
        return "100 %"
    return f"{min(max(100 * part / whole, 0.1 if part else 0.0), 99.9):.1f} %"


def duration(seconds: float) -> str:
    """A time in words."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    return f"{seconds:.1f} s" if seconds < 120 else time_words(seconds)


def cell(group: GroupReport, all_eps: Sequence[str]) -> Cell:
    """A group at a glance, by its models' shares over `all_eps`."""
    return Cell(
        group=group,
        shares=shares(group.models, all_eps),
        percent=percent(sum(map(_taken, group.models)), sum(m.nodes for m in group.models)),
        size=sum(file.size for file in group.files),
        error=error_words(largest_error(group.verify.numbers if group.verify else ())),
    )


def _checks(report: BuildReport) -> Figure:
    outcomes = Counter(f.outcome for g in report.groups if g.verify for f in g.verify.findings)
    failed, open_ones = outcomes["fail"], outcomes["not checkable"]
    told = [f"{failed} failed"] if failed else []
    told += [f"{open_ones} not checkable"] if open_ones else []
    unmade = sum(
        group.state in ("failed", "skipped") and not (group.verify and group.verify.findings)
        for group in report.groups
    )
    told += [f"{_count(unmade, 'group')} not checked"] if unmade else []
    tone = "bad" if failed else "warn" if told else "good"
    note = ", ".join(told) or "all that were made"
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


def _taken(model: ModelReport) -> int:
    return sum(part.nodes for part in model.partitions)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
