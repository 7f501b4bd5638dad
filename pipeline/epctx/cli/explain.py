"""`epctx explain`: the meaning of an error, and its remedy."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markdown import Markdown

from epctx.cli import completion
from epctx.cli.render import UI, facts_table
from epctx.commands import explain as pages


def explain(
    ui: UI,
    *,
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE",
            help="Code of an error, such as E0312; all codes are listed if omitted.",
            autocompletion=completion.codes,
        ),
    ] = None,
) -> None:
    """Print the cause of an error, an example and the remedy; without a code, list all errors.

    The first two digits of a code are the exit code. The output to a pipe is plain Markdown.
    """
    if code is None:
        listed = list(pages.everything())
        ui.emit(listed)
        ui.print(facts_table({each.code: each.title for each in listed}))
        return
    explained = pages.explain(code)
    ui.emit(explained)
    if ui.out.is_terminal or ui.out.color_system:
        ui.print(Markdown(pages.text(code)))
    elif not ui.json:
        typer.echo(pages.text(code), nl=False)
