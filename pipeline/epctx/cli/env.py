"""`epctx env`: the variables of the environment that epctx reads."""

from __future__ import annotations

from rich.text import Text

from epctx.cli.render import UI, table
from epctx.commands import environment


def env(ui: UI) -> None:
    """List the variables that epctx reads: what they are now and by default, what they do."""
    found = environment.variables()
    ui.emit(found)
    shown = table("variable", "now", "default", "meaning")
    for each in found:
        now = Text("not set", style="dim") if each.value is None else Text(each.value, style="bold")
        shown.add_row(each.name, now, each.default, each.meaning)
    ui.print(shown)
