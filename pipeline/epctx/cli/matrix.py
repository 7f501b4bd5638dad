"""Table of groups and targets, for a build that has several of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from epctx.cli.render import table
from epctx.engine.report import GroupReport

ABSENT = Text("-", style="dim")
"""Cell of a target that does not build a group."""


def is_worth(groups: Sequence[GroupReport]) -> bool:
    """Tell whether there are several groups and several targets; otherwise one row per group shows
    more.
    """
    return len({g.group for g in groups}) > 1 and len({g.target for g in groups}) > 1


def matrix(
    groups: Sequence[GroupReport], cell: Callable[[GroupReport], dict[str, RenderableType]]
) -> Table:
    """Return a table with groups as rows and targets as columns, transposed if there are more
    targets than groups.

    Args:
        groups: reports of every group of every target, in manifest order.
        cell: returns the content of a group's cell, by heading.
    """
    names = list(dict.fromkeys(group.group for group in groups))
    targets = list(dict.fromkeys(group.target for group in groups))
    reports = {(group.group, group.target): group for group in groups}
    turned = len(targets) > len(names)
    down, across = (targets, names) if turned else (names, targets)
    shown = table("target" if turned else "group", *across)
    for row in down:
        pairs = [(column, row) if turned else (row, column) for column in across]
        row_reports = [reports.get(pair) for pair in pairs]
        shown.add_row(row, *(_cell(cell(each)) if each else ABSENT for each in row_reports))
    return shown


def _cell(cells: dict[str, RenderableType]) -> Table:
    """Return the content of a cell: the state, then size and checks below, without headings."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(cells["state"])
    parts = [cells[heading] for heading in ("size", "on EPs") if heading in cells]
    checks = [cells[heading] for heading in ("checks", "max error") if heading in cells]
    for line in (parts, checks):
        if line:
            grid.add_row(_joined(line))
    return grid


def _joined(parts: Sequence[RenderableType]) -> Text:
    return Text(", ").join(part if isinstance(part, Text) else Text(str(part)) for part in parts)
