"""A group's own section: all that is known of it, in one place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from epctx.commands.report import overview, tables
from epctx.commands.report.links import Links
from epctx.commands.report.overview import Cell
from epctx.commands.report.tables import CheckRow, NumbersRow
from epctx.engine.report import BuildReport, GroupReport
from epctx.files.outputs import OutputFile, context_file
from epctx.stages.report import ModelReport
from epctx.verification.findings import error_words, largest_error

FEW: Final = 3
"""Groups of a build that are all open."""
OPEN: Final = 5
"""Failed groups that are open where there are more."""
SHOWN: Final = 20
"""Outputs whose numbers a group's section has; the table of all groups has the others."""


class LinkedFile(Struct, frozen=True, kw_only=True):
    """A published file. `name`: in the group's folder; `link`: None, it is not there."""

    name: str
    file: OutputFile
    link: str | None


class BucketRow(Struct, frozen=True, kw_only=True):
    """A bucket of a model: its sizes, what EPs took of it, its largest error, in words."""

    name: str
    sizes: str
    nodes: int
    percent: str
    error: str


class Entry(Struct, frozen=True, kw_only=True):
    """A model of the manifest in a group's section.

    Attributes:
        name: of one that lists sizes; empty: of one that does not, which says it itself.
        buckets: those sizes.
        models: as they were built, by their place in the group, from 1.
    """

    name: str = ""
    buckets: tuple[BucketRow, ...] = ()
    models: dict[int, ModelReport]


class Section(Struct, frozen=True, kw_only=True):
    """A group.

    Attributes:
        number: its place in the report, from 1.
        open: it is shown before the reader asks for it.
        drawn: so is the graph of its first model.
        numbers: of its outputs, the worst first.
        checks: what did not pass; of a failed group all of them.
        passed: how many passed.
        log: reference to the whole log; None: it is not there.
    """

    number: int
    cell: Cell
    open: bool
    drawn: bool
    numbers: tuple[NumbersRow, ...]
    checks: tuple[CheckRow, ...]
    passed: int
    files: tuple[LinkedFile, ...]
    log: str | None

    @property
    def group(self) -> GroupReport:
        """What the report has of it."""
        return self.cell.group

    @property
    def entries(self) -> list[Entry]:
        """Its models, in their order; those that are buckets of one together."""
        of = {name: model for model, each in self.group.buckets.items() for name in each}
        found: dict[tuple[str, str], dict[int, ModelReport]] = {}
        for place, model in enumerate(self.group.models, 1):
            name = of.get(model.name, "")
            found.setdefault((name, "" if name else model.name), {})[place] = model
        return [
            Entry(name=name, buckets=tuple(_buckets(self.group, name, models)), models=models)
            for (name, _), models in found.items()
        ]


def sections(report: BuildReport, eps: Sequence[str], links: Links) -> tuple[Section, ...]:
    """Every group, in the report's order. Failed ones are open, and all where they are few."""
    numbers = range(1, len(report.groups) + 1)
    shown = [n for n in numbers if report.groups[n - 1].state == "failed"][:OPEN]
    drawn = shown[:1]
    if len(numbers) <= FEW:
        shown = drawn = list(numbers)
    return tuple(
        _section(n, group, eps, links, open=n in shown, drawn=n in drawn or n not in shown)
        for n, group in enumerate(report.groups, 1)
    )


def _section(
    number: int, group: GroupReport, eps: Sequence[str], links: Links, *, open: bool, drawn: bool
) -> Section:
    checks = tables.checks([group])
    open_ones = tuple(row for row in checks if row.finding.outcome != "pass" or row.finding.is_note)
    return Section(
        number=number,
        cell=overview.cell(group, eps),
        open=open,
        drawn=drawn,
        numbers=tables.numbers([group]),
        checks=checks if group.state == "failed" else open_ones,
        passed=len(checks) - len(open_ones),
        files=tuple(_files(group, links)),
        log=links.to(*group.log.file.split("/")) if group.log else None,
    )


def _buckets(
    group: GroupReport, name: str, models: Mapping[int, ModelReport]
) -> Iterator[BucketRow]:
    """The rows of a model's buckets; a model without has none."""
    numbers = group.verify.numbers if group.verify is not None else ()
    for model in models.values() if name else ():
        own = [each for each in numbers if each.model == context_file(model.name)]
        taken = sum(part.nodes for part in model.partitions)
        sizes = group.buckets[name][model.name].items()
        yield BucketRow(
            name=model.name,
            sizes=", ".join(f"{dimension} {size}" for dimension, size in sizes),
            nodes=model.nodes,
            percent=overview.percent(taken, model.nodes),
            error=error_words(largest_error(own)),
        )


def _files(group: GroupReport, links: Links) -> list[LinkedFile]:
    named = [(file.name, file) for file in group.files]
    named += [(f"golden/{file.name}", file) for file in group.golden]
    return [
        LinkedFile(
            name=name,
            file=file,
            link=links.to(group.folder, name) if group.folder is not None else None,
        )
        for name, file in named
    ]
