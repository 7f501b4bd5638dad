"""`epctx import ep-weight-sharing`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.text import Text

from epctx import api
from epctx.cli import declared
from epctx.cli.render import UI, Group

app = Group("Write a manifest from the command line of another tool.")


@app.callback()
def _import() -> None:
    pass


@declared.by(api.import_ep_weight_sharing)
def ep_weight_sharing(ui: UI, call: Callable[..., Path]) -> None:
    manifest = call()
    ui.emit({"manifest": manifest})
    ui.print(Text.assemble("wrote ", (manifest.as_posix(), "bold")))


app.add(ep_weight_sharing)
