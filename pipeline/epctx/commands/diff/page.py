"""HTML page that compares two builds: `epctx diff A B --html FILE`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from epctx.commands.diff.compare import Changed, ChangedFile, Comparison, Side, not_compared
from epctx.commands.report import figures
from epctx.commands.report.figures import NumbersRow
from epctx.engine.report import BuildReport, GroupReport
from epctx.errors import UsageError
from epctx.files import atomic
from epctx.keys.records import between
from epctx.text import size_words
from epctx.verification.findings import error_words, largest_error

SHOWN: Final = 100
"""Number of differences of a group that the page lists."""
FEW: Final = 3
"""Up to this number of differing groups, the page shows all of them open."""
NONE: Final = "\N{EN DASH}"
"""Text of an empty cell."""
_GOOD: Final = ("built", "up to date")


class Fact(Struct, frozen=True):
    """Fact of both builds. `tone` is "good" or "bad" for the change, empty for neither."""

    name: str
    old: str
    new: str
    tone: str = ""

    @property
    def same(self) -> bool:
        """Tell whether both builds have the same value."""
        return self.old == self.new


class ComparedNumbers(Struct, frozen=True, kw_only=True):
    """Output of a model on both sides, each for the inputs with the largest error."""

    model: str
    output: str
    old: NumbersRow | None
    new: NumbersRow | None


class ComparedGroup(Struct, frozen=True, kw_only=True):
    """Group that is in at least one of the builds.

    Attributes:
        label: `group@target`.
        old, new: the group in each build; None if the build does not have it.
        changes: differences in settings, toolchain, partitions, models and binaries.
        files: files that differ or that only one build has.
        same: True if only the build time and the up-to-date state may differ.
    """

    label: str
    old: GroupReport | None
    new: GroupReport | None
    facts: tuple[Fact, ...]
    changes: tuple[Changed, ...]
    files: tuple[ChangedFile, ...]
    numbers: tuple[ComparedNumbers, ...]
    same: bool


def groups(old: BuildReport, new: BuildReport, comparison: Comparison) -> tuple[ComparedGroup, ...]:
    """List the groups of both builds: differing groups first, then in the new build's order."""
    before, after = (
        {figures.group_label(group): group for group in each.groups} for each in (old, new)
    )
    locked = old.lock is not None and new.lock is not None
    rows = (
        _group(name, before.get(name), after.get(name), comparison, locked)
        for name in dict.fromkeys([*after, *before])
    )
    return tuple(sorted(rows, key=lambda row: row.same))


def of_no_group(groups: tuple[ComparedGroup, ...], comparison: Comparison) -> tuple[Changed, ...]:
    """List differences that belong to no group: toolchain, host, sources."""
    prefixes = [_prefix(each) for group in groups for each in (group.old, group.new) if each]
    return tuple(
        change
        for change in comparison.differences
        if not any(_is_of(change.where, prefix) for prefix in prefixes)
    )


def _group(
    name: str,
    old: GroupReport | None,
    new: GroupReport | None,
    comparison: Comparison,
    locked: bool,
) -> ComparedGroup:
    prefix = next(_prefix(each) for each in (new, old) if each is not None)
    setting_changes = tuple(_setting_changes(old, new, prefix)) if old and new else ()
    changes = (
        *setting_changes,
        *(_toolchains(old, new, prefix) if old and new and not locked else ()),
        *(
            change
            for change in comparison.differences
            if _is_of(change.where, prefix) and not (setting_changes and change.area == "setting")
        ),
    )
    files = tuple(file for file in comparison.files if _is_of(file.file, prefix))
    facts = tuple(_facts(old, new))
    return ComparedGroup(
        label=name,
        old=old,
        new=new,
        facts=facts,
        changes=changes,
        files=files,
        numbers=tuple(_numbers(old, new)),
        same=not changes and not files and all(fact.same for fact in facts if _matters(fact)),
    )


def _prefix(group: GroupReport) -> str:
    return f"{group.target}/{group.group}"


def _is_of(where: str, prefix: str) -> bool:
    """Tell whether a place (`target/group`, `target/group/model_ctx.onnx`) belongs to a group."""
    return where == prefix or where.startswith(f"{prefix}/")


def _setting_changes(old: GroupReport, new: GroupReport, prefix: str) -> Iterator[Changed]:
    """Changed settings of a group, if both reports have its settings."""
    if old.manifest and new.manifest:
        for change in between(old.manifest, new.manifest):
            yield Changed(area="setting", where=prefix, what=str(change))


def _toolchains(old: GroupReport, new: GroupReport, prefix: str) -> Iterator[Changed]:
    """Changed toolchains of a group's EPs, for builds without locks."""
    for change in between(_toolchain(old), _toolchain(new)):
        yield Changed(area="toolchain", where=prefix, what=str(change))


def _toolchain(group: GroupReport) -> Mapping[str, object]:
    return {ep.alias: ep.toolchain for ep in group.execution_providers}


def _matters(fact: Fact) -> bool:
    if fact.name == "State":
        return (fact.old in _GOOD) != (fact.new in _GOOD) or fact.old == NONE
    return fact.name != "Time"


def _facts(old: GroupReport | None, new: GroupReport | None) -> tuple[Fact, ...]:
    return (
        _fact("State", old, new, lambda group: group.state, lambda group: group.state in _GOOD),
        _fact("On EPs", old, new, _on_eps, _coverage),
        _fact("Partitions", old, new, _partitions),
        _fact("Size", old, new, _size),
        _fact("Largest error", old, new, _error, _passed),
        _fact("Time", old, new, _time),
    )


def _fact(
    name: str,
    old: GroupReport | None,
    new: GroupReport | None,
    words: Callable[[GroupReport], str],
    good: Callable[[GroupReport], float | None] = lambda _: None,
) -> Fact:
    """Make a fact. `good` returns a number, the higher the better; None if it is unknown."""
    before, after = (good(group) if group else None for group in (old, new))
    tone = ""
    if before is not None and after is not None and before != after:
        tone = "good" if after > before else "bad"
    before_words, after_words = (words(group) if group else NONE for group in (old, new))
    return Fact(name, before_words, after_words, tone)


def _nodes_on_eps(group: GroupReport) -> tuple[int, int]:
    """Number of nodes on EPs, and of all nodes."""
    on_eps = sum(part.nodes for model in group.models for part in model.partitions)
    return on_eps, sum(model.nodes for model in group.models)


def _on_eps(group: GroupReport) -> str:
    return figures.percent(*_nodes_on_eps(group)) if group.models else NONE


def _coverage(group: GroupReport) -> float | None:
    on_eps, nodes = _nodes_on_eps(group)
    return on_eps / nodes if nodes else None


def _partitions(group: GroupReport) -> str:
    return str(sum(len(model.partitions) for model in group.models)) if group.models else NONE


def _size(group: GroupReport) -> str:
    return size_words(sum(file.size for file in group.files)) if group.files else NONE


def _error(group: GroupReport) -> str:
    return error_words(largest_error(group.verify.numbers if group.verify else ()))


def _passed(group: GroupReport) -> float | None:
    numbers = group.verify.numbers if group.verify else ()
    return float(all(each.passed for each in numbers)) if numbers else None


def _time(group: GroupReport) -> str:
    seconds = sum(time.end - time.start for time in group.stages)
    return figures.duration(seconds) if seconds else NONE


def _numbers(old: GroupReport | None, new: GroupReport | None) -> Iterator[ComparedNumbers]:
    before, after = (
        {(row.worst.model, row.worst.output, row.worst.right): row for row in rows}
        for rows in (figures.number_rows([each] if each else []) for each in (old, new))
    )
    for key in dict.fromkeys([*after, *before]):
        yield ComparedNumbers(model=key[0], output=key[1], old=before.get(key), new=after.get(key))


def write(old: Side, new: Side, comparison: Comparison, page: Path) -> None:
    """Write the HTML page of two builds that were compared.

    Raises:
        UsageError: a side has no build report, or `epctx[report]` is not installed.
        StorageError: the page cannot be written.
    """
    UsageError.if_missing("jinja2", "report")
    from epctx.commands.report.page import document

    before, after = _report(old), _report(new)
    rows = groups(before, after, comparison)
    # The page must not contain paths of the build host.
    sides = replace(old, name="the old build"), replace(new, name="the new build")
    text = document(
        "compared.html",
        old=before,
        new=after,
        figures=tuple(_figures(before, after)),
        groups=[row for row in rows if not row.same],
        same=[row for row in rows if row.same],
        changes=of_no_group(rows, comparison),
        not_compared=tuple(not_compared(*sides)),
        shown=SHOWN,
        few=FEW,
        nothing=NONE,
    )
    atomic.replace(page, text.encode())


def _report(side: Side) -> BuildReport:
    if side.report is None:
        raise UsageError(
            "has no build report, but the page needs the reports of both builds",
            file=side.name,
            remedy="name `dist/<name>` or its .build.json, or leave out --html",
        )
    return side.report


def _figures(old: BuildReport, new: BuildReport) -> list[Fact]:
    """Key figures of both builds, side by side."""
    before, after = (
        {figure.name: figure for figure in figures.key_figures(each, None)} for each in (old, new)
    )
    return [
        Fact(
            name,
            before[name].value if name in before else NONE,
            after[name].value if name in after else NONE,
        )
        for name in dict.fromkeys([*after, *before])
    ]
