"""The command line: parse arguments, call the API, render results (design section 10).

A new command is a module beside this one and a name in `COMMANDS`. It takes its parameters and its
help from its function in `api` (`declared`).
"""

from __future__ import annotations

import importlib
import keyword
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption

from epctx._version import __version__
from epctx.cli import arguments, streams, usage
from epctx.cli.render import command
from epctx.engine import report
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.text import did_you_mean

if TYPE_CHECKING:  # typer has no public names for them
    from typer._click.core import Command, Context, Parameter

COMMANDS = (
    *("init", "import", "validate", "plan", "build", "package", "kit", "sign", "verify"),
    *("reproduce", "bisect", "inspect", "diff", "push", "pull", "worker", "run", "report"),
    *("doctor", "env", "explain", "schema", "cache"),
)
"""Each command has a module of its name, followed by `_` for a Python keyword. The module defines
`app`, or a function of that name."""


class _Commands(TyperGroup):
    """The group of all commands; imports a command's module when the command is used."""

    def list_commands(self, ctx: Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        if cmd_name not in COMMANDS:
            return None
        python_name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        module = importlib.import_module(f"epctx.cli.{python_name}")
        own: typer.Typer | None = getattr(module, "app", None)
        if own is None:
            own = typer.Typer(add_completion=False)
            own.command(cmd_name)(command(getattr(module, cmd_name)))
        built = typer.main.get_command(own)
        built.name = cmd_name
        for each in (built, *getattr(built, "commands", {}).values()):
            _show_no_type([*each.params, each.get_help_option(ctx)])
        return built

    def get_params(self, ctx: Context) -> list[Parameter]:
        params = super().get_params(ctx)
        _show_no_type(params)
        return params

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UsageError(
                f"no command {args[0]!r}",
                remedy=did_you_mean(args[0], COMMANDS),
                code=Code.COMMAND_LINE,
            )
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line with guarded streams; report wrong arguments like other errors."""
        argv = sys.argv[1:] if args is None else list(args)
        with streams.guarded():
            try:
                code = super().main(
                    args=arguments.normal(argv),
                    prog_name=prog_name,
                    complete_var=complete_var,
                    standalone_mode=False,
                    windows_expand_args=windows_expand_args,
                    **extra,
                )
            except Exception as error:
                if not standalone_mode:
                    raise
                code = usage.report(error, argv, prog_name or "epctx")
            if standalone_mode:
                sys.exit(code or 0)
            return code


def _show_no_type(params: Iterable[Parameter | None]) -> None:
    """Hide `<bool>` in the help of flags, which take no value."""
    for each in params:
        if isinstance(each, TyperOption) and each.is_flag:
            each.metavar = ""


app = typer.Typer(
    name="epctx",
    cls=_Commands,
    help="Declarative, reproducible builds of ONNX Runtime EPContext models.",
    epilog="`epctx env` lists the environment variables for all other settings.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(context: typer.Context, requested: bool) -> None:
    if not requested:
        return
    typer.echo(f"epctx {__version__}")
    if context.params.get("verbose"):
        for name, version in report.versions().items():
            typer.echo(f"{name} {version}")
    raise typer.Exit


@app.callback()
def _epctx(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_version,
            metavar="",
            help="Print the version; with -v also the versions of the libraries it uses.",
        ),
    ] = False,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, is_eager=True, hidden=True)
    ] = 0,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    streams.open_closed()
    if sys.platform != "win32":
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, nobody learns how workers end
    app(prog_name="epctx")
