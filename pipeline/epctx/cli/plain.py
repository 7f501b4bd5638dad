"""Texts, tables and trees as a log has them: what rich prints where a line may be of any length.

It takes rich a millisecond for a line, and a build of a thousand groups has thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree


class WideTable(Table):
    """A table without lines but the one below its head."""

    def __init__(self) -> None:
        super().__init__(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))


def lines(renderable: RenderableType) -> list[str] | None:
    """The lines of a text, a table or a tree, as long as they are; None: rich is to print it."""
    if isinstance(renderable, WideTable):
        columns = [[column.header, *column.cells] for column in renderable.columns]
        cells = [[_line(cell) for cell in column] for column in columns]
        if not columns or any(None in column for column in cells):
            return None
        right = [column.justify == "right" for column in renderable.columns]
        return list(_table([[cell or "" for cell in column] for column in cells], right))
    if isinstance(renderable, Tree):
        branches = list(_branches(renderable))
        return None if None in branches else [line for line in branches if line is not None]
    if isinstance(renderable, Text) and "\t" not in renderable.plain:
        return renderable.plain.split("\n")
    return None


def _line(cell: RenderableType) -> str | None:
    """What a cell says in one line; None: more than that."""
    text = cell.plain if isinstance(cell, Text) else cell
    return text if isinstance(text, str) and text.isprintable() else None


def _table(columns: Sequence[Sequence[str]], right: Sequence[bool]) -> Iterator[str]:
    widths = [max(map(cell_len, column)) for column in columns]
    for number, row in enumerate(zip(*columns, strict=True)):
        yield "  ".join(map(_padded, row, widths, right))
        if number == 0:
            yield "\u2500" * (sum(widths) + 2 * (len(widths) - 1))


def _branches(tree: Tree) -> Iterator[str | None]:
    yield _line(tree.label)
    for child in tree.children:
        last = child is tree.children[-1]
        first, rest = ("└── ", "    ") if last else ("├── ", "│   ")
        for number, line in enumerate(_branches(child)):
            yield None if line is None else (rest if number else first) + line


def _padded(text: str, width: int, right: bool) -> str:
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks
