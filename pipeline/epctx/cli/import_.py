"""`epctx import ep-weight-sharing`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from epctx.cli.options import NewManifest
from epctx.cli.render import UI, command
from epctx.commands.import_ import command as importing

app = typer.Typer(
    help="Write a manifest that builds what another tool was told to build.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _import() -> None:
    pass


def ep_weight_sharing(
    ui: UI,
    flags: Annotated[
        str,
        typer.Argument(
            metavar="'FLAGS'",
            help="The command line of ep_weight_sharing_ctx_gen, as one word in quotation marks.",
        ),
    ],
    *,
    out: NewManifest = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file if it is there.")
    ] = False,
) -> None:
    """Write the manifest that builds what ep_weight_sharing_ctx_gen builds."""
    written = importing.write(flags, out, force=force)
    ui.emit({"manifest": written})
    ui.print(Text.assemble("wrote ", (written.as_posix(), "bold")))


app.command("ep-weight-sharing", context_settings={"help_option_names": ["-h", "--help"]})(
    command(ep_weight_sharing)
)
