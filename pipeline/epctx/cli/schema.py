"""`epctx schema`: print a JSON Schema."""

from __future__ import annotations

from typing import Annotated

import typer

from epctx.cli import completion
from epctx.cli.render import UI
from epctx.parsing.schema import apply as schemas


def schema(
    ui: UI,
    *,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="manifest, lock, report, providers/NAME; all names are listed if omitted.",
            autocompletion=completion.schemas,
        ),
    ] = None,
) -> None:
    """Print a schema, for editors and for other tools; without a name, list them."""
    if name is not None:
        # The console would wrap lines at the terminal's width, but the text is for a file.
        typer.echo(schemas.text(name), nl=False)
        return
    ui.emit(schemas.names())
    ui.print(*schemas.names())
