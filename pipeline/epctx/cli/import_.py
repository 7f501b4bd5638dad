"""`epctx import`: from another tool's command line, or its context binary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from epctx import api
from epctx.cli import declared, init, verify
from epctx.cli.render import UI, Group

if TYPE_CHECKING:  # it imports onnx
    from epctx.commands.import_context import ImportReport

app = Group("Take over the command line, or the context binary, of another tool.")


@app.callback()
def _import() -> None:
    pass


@declared.by(api.import_ep_weight_sharing)
def ep_weight_sharing(ui: UI, call: Callable[..., Path]) -> None:
    manifest = call()
    ui.emit({"manifest": manifest})
    init.show_manifest(ui, manifest)


@declared.by(api.import_qnn_context)
def qnn_context(ui: UI, call: Callable[..., ImportReport]) -> int:
    imported = call()
    ui.emit(imported)
    code = verify.show(ui, imported.report)
    for model in imported.models:
        ui.print(Text.assemble("wrote ", (model.as_posix(), "bold")))
    return code


app.add(ep_weight_sharing)
app.add(qnn_context)
