"""The page of two builds: `epctx report A B`."""

from __future__ import annotations

from pathlib import Path

from epctx.commands.report import command
from epctx.errors import UsageError
from epctx.files import atomic


def page_of(new: Path) -> Path:
    """Where the page goes if nobody says: beside the new build's report."""
    return command.page_of(new, "compared")


def write(old: Path, new: Path, page: Path) -> None:
    """Write the page of two builds by their reports; as `api.report`.

    Raises:
        UsageError: both are one report, or one of them is none of this version.
        StorageError: the page cannot be written.
    """
    if old.resolve() == new.resolve():
        raise UsageError(
            "is both of the builds to compare",
            file=old.as_posix(),
            remedy="build into two folders, with `epctx build --out`, and name both reports",
        )
    UsageError.if_missing("jinja2", "report")
    from epctx.commands.compared.page import render

    atomic.replace(page, render(old, new).encode())
