"""A group's own section: all that is known of it, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from epctx.commands.report import overview, tables
from epctx.commands.report.links import Links
from epctx.commands.report.overview import Cell
from epctx.commands.report.tables import CheckRow, NumbersRow
from epctx.engine.report import BuildReport, GroupReport
from epctx.files.outputs import OutputFile

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
    open_ones = tuple(row for row in checks if row.finding.outcome != "pass")
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
