"""Two builds as one HTML page, of the parts that the page of one is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec.structs import replace

from epctx.commands.compared import groups
from epctx.commands.compared.groups import NONE, Fact
from epctx.commands.diff.differing import compare
from epctx.commands.diff.sides import side
from epctx.commands.report import command, overview
from epctx.commands.report.page import document
from epctx.engine.report import BuildReport

SHOWN: Final = 100
"""Differences of a group that the page has."""
FEW: Final = 3
"""Groups that differ and are all open."""


def render(old: Path, new: Path) -> str:
    """The page of two reports. What differs inside files is told where they still lie there."""
    # No path of the builder is on the page.
    found = compare(
        replace(side(old), name="the old build"), replace(side(new), name="the new build")
    )
    one, other = command.read(old), command.read(new)
    rows = groups.groups(one, other, found)
    return document(
        "compared.html",
        old=one,
        new=other,
        figures=tuple(_figures(one, other)),
        groups=[row for row in rows if not row.same],
        same=[row for row in rows if row.same],
        changes=groups.of_no_group(rows, found),
        not_compared=found.not_compared,
        shown=SHOWN,
        few=FEW,
        nothing=NONE,
    )


def _figures(old: BuildReport, new: BuildReport) -> list[Fact]:
    """The first row of both, side by side."""
    before, after = (
        {figure.name: figure for figure in overview.figures(each, None)} for each in (old, new)
    )
    return [
        Fact(
            name,
            before[name].value if name in before else NONE,
            after[name].value if name in after else NONE,
        )
        for name in dict.fromkeys([*after, *before])
    ]
