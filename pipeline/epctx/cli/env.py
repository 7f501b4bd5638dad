"""`epctx env`: the environment variables that epctx reads."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from epctx import api
from epctx.cli import declared
from epctx.cli.render import UI, table
from epctx.commands.environment import Variable


@declared.by(api.env)
def env(ui: UI, call: Callable[..., list[Variable]]) -> None:
    variables = call()
    ui.emit(variables)
    shown = table("variable", "now", "default", "meaning")
    for each in variables:
        now = Text("not set", style="dim") if each.value is None else Text(each.value, style="bold")
        shown.add_row(each.name, now, each.default, each.meaning)
    ui.print(shown)
