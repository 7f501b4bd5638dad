"""`epctx sign`: sign a package, or the outputs of a build."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.text import Text

from epctx import api
from epctx.cli import declared
from epctx.cli.render import UI

if TYPE_CHECKING:  # it imports onnx
    from epctx.commands.sign import SignReport


@declared.by(api.sign)
def sign(ui: UI, call: Callable[..., SignReport]) -> None:
    report = call(waiting=ui.waiting)
    ui.emit(report)
    words = f"  {report.files} file{'s' * (report.files != 1)}, signed by {report.signer}"
    ui.print(Text.assemble((report.path, "bold"), words))
