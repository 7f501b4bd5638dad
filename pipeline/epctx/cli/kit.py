"""`epctx kit`: what a device without epctx needs to check and time what it got."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from epctx import api
from epctx.cli.paths import Existing, Written
from epctx.cli.render import UI
from epctx.text import size_words


def kit(
    ui: UI,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|PACKAGE", help="A folder of built groups, with golden files, or a package."
        ),
        Existing(),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The kit; else <DIR>.kit beside it."),
        Written(),
    ] = None,
    golden: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder of a build with `--golden`: a package has no golden files.",
        ),
        Existing(),
    ] = None,
    expect_driver: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="What the device's driver must be; another is told."),
    ] = None,
) -> None:
    """Write a folder with which a device that has no epctx checks and times the models.

    There, check_device.py needs Python, numpy, onnxruntime and the packages of the EPs; it writes
    what `epctx verify --device-results` judges.
    """
    made = api.kit(source, out=out, golden=golden, expect_driver=expect_driver)
    ui.emit(made)
    count = f"{made.models} model{'s' * (made.models != 1)}"
    ui.print(
        Text.assemble((f"{made.path.as_posix()}/", "bold"), f"  {count}, {size_words(made.size)}")
    )
    for model, why in made.left.items():
        ui.note(Text(f"{model} cannot be checked there: {why}", style="yellow"))
    if made.not_packed:
        names = ", ".join(made.not_packed)
        ui.note(Text(f"not packed, since it is of no group: {names}", style="yellow"))
