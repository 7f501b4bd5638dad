"""`epctx report`: a build as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from epctx import api
from epctx.cli.options import STARTER, located
from epctx.cli.paths import Existing, Written
from epctx.cli.render import UI


def report(
    ui: UI,
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="[MANIFEST|JSON|DIST]",
            show_default=False,
            help="A manifest that was built, its report, or the folder of its outputs; else "
            "epctx.yaml, or the only manifest in manifests/.",
        ),
        STARTER,
    ] = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The page; else <name>.report.html beside the report.",
        ),
        Written(),
    ] = None,
    dist: Annotated[
        Path, typer.Option(help="Where the outputs of a manifest are, its report among them.")
    ] = Path("dist"),
    device_results: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What check_device.py of a kit wrote on a device: it is judged, and shown beside "
            "the build.",
        ),
        Existing(),
    ] = None,
) -> None:
    """Write the report of the last build as one HTML page, which needs no network.

    Nothing is built or run: what failed, groups and targets, the timeline, and of each group its
    models' graphs, numbers, checks, files, EPs and settings are those of dist/<name>.build.json.
    `epctx diff A B --html FILE` writes the page of two builds.
    """
    page = api.report(located(source), out=out, dist=dist, device_results=device_results)
    ui.emit({"page": page, "size": page.stat().st_size})
    ui.print(Text(page.as_posix(), style="bold"))
