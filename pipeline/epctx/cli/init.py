"""`epctx init`: write a starter manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from epctx.cli import completion
from epctx.cli.paths import Existing, Written
from epctx.cli.render import UI
from epctx.error_codes import Code
from epctx.errors import UsageError


def init(
    ui: UI,
    models: Annotated[
        list[Path],
        typer.Argument(
            help="ONNX models, or a model folder of onnxruntime-genai.", metavar="MODEL.onnx|FOLDER"
        ),
        Existing(),
    ],
    *,
    provider: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="ONNX Runtime's name of the execution provider.",
            autocompletion=completion.providers,
        ),
    ] = "ReferenceExecutionProvider",
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A provider option; repeatable.",
            autocompletion=completion.options,
        ),
    ] = None,
    share: Annotated[
        bool, typer.Option("--share", help="All models share one context, in this order.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The manifest to write."), Written()] = Path(
        "epctx.yaml"
    ),
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file if it is there.")
    ] = False,
) -> None:
    """Write a starter manifest for models; it is valid, and says what could be set."""
    from epctx.commands import init as starter

    options: dict[str, str] = {}
    for given in option or ():
        key, separator, value = given.partition("=")
        if not key or not separator:
            raise UsageError(
                f'"{given}" is no option',
                where="--option",
                remedy="write --option KEY=VALUE",
                code=Code.COMMAND_LINE,
            )
        options[key] = value
    written = starter.write(
        models, out, provider=provider, options=options, share=share, force=force
    )
    ui.emit({"manifest": written})
    ui.print(Text.assemble("wrote ", (written.as_posix(), "bold")))
    ui.note(Text(f"next: epctx build {written.as_posix()}", style="cyan"))
