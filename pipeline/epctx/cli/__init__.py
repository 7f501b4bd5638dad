"""The command line: arguments, calls, rendering; nothing else (design section 10)."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from epctx.cli import cache
from epctx.cli.render import command

COMMANDS = ("init", "validate", "plan", "build", "verify", "inspect", "schema")
"""One module each, whose function of the same name is the command."""

app = typer.Typer(
    name="epctx",
    help="Declarative, reproducible builds of ONNX Runtime EPContext models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from epctx._version import __version__

        typer.echo(f"epctx {__version__}")
        raise typer.Exit


@app.callback()
def _epctx(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


for _name in COMMANDS:
    _module = importlib.import_module(f"epctx.cli.{_name}")
    app.command(_name)(command(getattr(_module, _name)))
app.add_typer(cache.app, name="cache")


def main() -> None:
    """The entry point `epctx`."""
    app(prog_name="epctx")
