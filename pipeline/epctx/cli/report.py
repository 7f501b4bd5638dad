"""`epctx report`: the build report as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from epctx.cli.options import STARTER
from epctx.cli.paths import Written
from epctx.cli.render import UI


def report(
    ui: UI,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="MANIFEST|JSON|DIST",
            help="A manifest that was built, its report, or the folder of its outputs.",
        ),
        STARTER,
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page; else <name>.report.html beside the report."),
        Written(),
    ] = None,
    dist: Annotated[
        Path, typer.Option(help="Where the outputs of a manifest are, its report among them.")
    ] = Path("dist"),
) -> None:
    """Write the report of the last build as one HTML page, which needs no network.

    Nothing is built or run: groups and targets, the timeline, the graph of each model, numbers,
    checks, files and toolchain are those of dist/<name>.build.json.
    """
    from epctx import api

    page = api.report(source, out, dist=dist)
    ui.emit({"page": page, "size": page.stat().st_size})
    ui.print(Text(page.as_posix(), style="bold"))
