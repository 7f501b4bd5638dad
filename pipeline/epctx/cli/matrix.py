"""Table of groups over targets, for a build of several of both."""

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
    """Tell whether there are several groups and several targets; else a row a group says more."""
    return len({g.group for g in groups}) > 1 and len({g.target for g in groups}) > 1


def matrix(
    groups: Sequence[GroupReport], cell: Callable[[GroupReport], dict[str, RenderableType]]
) -> Table:
    """Return groups down and targets across, or the other way round if there are more targets.

    Args:
        groups: of each group of each target what became of it, in manifest order.
        cell: what is told of one, by heading: a line each.
    """
    names = list(dict.fromkeys(group.group for group in groups))
    targets = list(dict.fromkeys(group.target for group in groups))
    known = {(group.group, group.target): group for group in groups}
    turned = len(targets) > len(names)
    down, across = (targets, names) if turned else (names, targets)
    shown = table("target" if turned else "group", *across)
    for row in down:
        pairs = [(column, row) if turned else (row, column) for column in across]
        found = [known.get(pair) for pair in pairs]
        shown.add_row(row, *(_cell(cell(each)) if each else ABSENT for each in found))
    return shown


def _cell(told: dict[str, RenderableType]) -> Table:
    """Return the state, and below it the size and the rest, without headings."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(told["state"])
    parts = [told[heading] for heading in ("size", "on EPs") if heading in told]
    checks = [told[heading] for heading in ("checks", "max error") if heading in told]
    for line in (parts, checks):
        if line:
            grid.add_row(_joined(line))
    return grid


def _joined(parts: Sequence[RenderableType]) -> Text:
    return Text(", ").join(part if isinstance(part, Text) else Text(str(part)) for part in parts)
