"""Markdown that is put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def cell(text: str) -> str:
    """A text as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def fence(language: str, code: str) -> str:
    """A block of code."""
    return f"```{language}\n{code.rstrip()}\n```"


def contents(names: Iterable[str]) -> str:
    """The pages beside this one that the navigation has below it."""
    listed = "\n".join(names)
    return f"```{{toctree}}\n:hidden:\n\n{listed}\n```"
