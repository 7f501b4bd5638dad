"""`epctx report`: a build as one HTML page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.text import Text

from epctx import api
from epctx.cli import declared
from epctx.cli.render import UI


@declared.by(api.report)
def report(ui: UI, call: Callable[..., Path]) -> None:
    page = call()
    ui.emit({"page": page, "size": page.stat().st_size})
    ui.print(Text(page.as_posix(), style="bold"))
