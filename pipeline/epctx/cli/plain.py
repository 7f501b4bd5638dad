"""Texts, tables and trees that are lines in a log, and rich's where people look.

A log's lines may be of any length and have no colours: nothing is to be laid out. It takes rich a
tenth of a short build to be imported, and a millisecond for a line, of which a build of a thousand
groups has thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from epctx.cli.visible import visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text as RichText
    from rich.tree import Tree as RichTree


@runtime_checkable
class HasLines(Protocol):
    """What knows the lines that it is in a log."""

    def lines(self) -> list[str] | None:
        """The lines, as long as they are; None: rich is to lay it out."""
        ...


def lines(renderable: object) -> list[str] | None:
    """The lines that something is in a log, as long as they are, with control characters written
    out; None: rich is to lay it out.
    """
    found = renderable.lines() if isinstance(renderable, HasLines) else None
    return None if found is None else [visible(line).rstrip() for line in found]


class Text:
    """A text in styles of rich.

    Args:
        style: of all of it, also of what is appended.
    """

    def __init__(self, text: str = "", style: str = "") -> None:
        self._style = style
        self._parts = [(text, "")]

    @classmethod
    def assemble(cls, *parts: str | tuple[str, str]) -> Self:
        """A text of parts, each with a style of its own, or without."""
        made = cls()
        for part in parts:
            text, own = (part, "") if isinstance(part, str) else part
            made.append(text, own)
        return made

    def append(self, text: str | Text, style: str = "") -> Self:
        """Go on with a part in a style, or with what another text says in its own; return this."""
        if isinstance(text, Text):
            self._parts += [(part, f"{text._style} {own}".strip()) for part, own in text._parts]
        else:
            self._parts.append((text, style))
        return self

    def join(self, texts: Iterable[Text]) -> Text:
        """A text of others with this one between each two."""
        made = Text()
        for number, text in enumerate(texts):
            if number:
                made.append(self)
            made.append(text)
        return made

    @property
    def plain(self) -> str:
        """Without styles."""
        return "".join(text for text, _ in self._parts)

    def lines(self) -> list[str] | None:
        """As the Protocol says."""
        return None if "\t" in self.plain else self.plain.split("\n")

    def __bool__(self) -> bool:
        return bool(self.plain)

    def __str__(self) -> str:
        return self.plain

    def __rich__(self) -> RichText:
        from rich.text import Text

        made = Text(style=self._style)
        for text, style in self._parts:
            made.append(text, style)
        return made


class Table:
    """A table without lines but the one below its head; nothing in it is cut.

    Args:
        headings: the columns, each with whether it is set to the right.
    """

    def __init__(self, headings: Sequence[tuple[str, bool]]) -> None:
        self._headings = headings
        self._rows: list[Sequence[RenderableType]] = []

    def add_row(self, *cells: RenderableType) -> None:
        """Add a row: a cell a column."""
        self._rows.append(cells)

    def lines(self) -> list[str] | None:
        """As the Protocol says."""
        rows = [[_line(cell) for cell in row] for row in self._rows]
        if not self._headings or any(None in row for row in rows):
            return None
        told = [[cell or "" for cell in row] for row in rows]
        head = [heading for heading, _ in self._headings]
        return list(_laid_out([head, *told], [right for _, right in self._headings]))

    def __rich__(self) -> RichTable:
        from rich import box
        from rich.table import Table

        made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for heading, right in self._headings:
            made.add_column(heading, justify="right" if right else "left", overflow="fold")
        for row in self._rows:
            made.add_row(*row)
        return made


@dataclass
class Tree:
    """A label, and trees below it."""

    label: RenderableType
    children: list[Tree] = field(default_factory=list)

    def add(self, label: RenderableType) -> Tree:
        """A new tree below this one."""
        self.children.append(Tree(label))
        return self.children[-1]

    def lines(self) -> list[str] | None:
        """As the Protocol says."""
        found = list(self._branches())
        told = [line for line in found if line is not None]
        return told if told == found else None

    def _branches(self) -> Iterator[str | None]:
        yield _line(self.label)
        for child in self.children:
            last = child is self.children[-1]
            first, rest = ("└── ", "    ") if last else ("├── ", "│   ")
            for number, line in enumerate(child._branches()):
                yield None if line is None else (rest if number else first) + line

    def __rich__(self) -> RichTree:
        from rich.tree import Tree

        made = Tree(self.label)
        made.children.extend(child.__rich__() for child in self.children)
        return made


def _line(cell: RenderableType) -> str | None:
    """What a cell says in one line; None: more than that."""
    text = cell if isinstance(cell, str) else getattr(cell, "plain", None)
    return text if isinstance(text, str) and text.isprintable() else None


def _laid_out(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> Iterator[str]:
    width = _width([text for row in rows for text in row])
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        blanks = (" " * (wide - width(text)) for text, wide in zip(row, widths, strict=True))
        cells = zip(row, blanks, right, strict=True)
        yield "  ".join(
            blank + text if to_right else text + blank for text, blank, to_right in cells
        )
        if number == 0:
            yield "\u2500" * (sum(widths) + 2 * (len(widths) - 1))


def _width(texts: Sequence[str]) -> Callable[[str], int]:
    """What tells how many cells of a terminal a text takes."""
    if all(map(str.isascii, texts)):
        return len
    from rich.cells import cell_len

    return cell_len
