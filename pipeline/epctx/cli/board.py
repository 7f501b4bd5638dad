"""Live view of a build on a terminal."""

from __future__ import annotations

from typing import Final, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from epctx.cli.render import UI
from epctx.cli.standing import Shown, far, line, name
from epctx.engine.events import Event
from epctx.text import time_words

_SHOWN: Final = 8
"""Maximum number of running stages to show."""


class Board(Shown):
    """Show the running stages, longest first, then the progress. Failures stay on the screen."""

    def __init__(self, ui: UI) -> None:
        super().__init__()
        self._ui = ui
        self._spinner = Spinner("dots")
        self._live = Live(self, console=ui.err, refresh_per_second=8, transient=True)
        self._shows_any = False

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def __call__(self, event: Event) -> None:
        """Show an event."""
        super().__call__(event)
        if event.state in ("waiting", "notice", "failed"):
            self._ui.note(line(event))
        if event.state == "running" and not self._shows_any:
            self._shows_any = True
            self._live.refresh()  # otherwise a short stage ends before it is shown

    def __rich__(self) -> RenderableType:
        snapshot = self.tally.snapshot()
        table = Table.grid(padding=(0, 1))
        for each in snapshot.running[:_SHOWN]:
            time = Text(time_words(each.seconds), style="dim")
            table.add_row(self._spinner, name(each), time, Text(each.detail or "", style="dim"))
        more = len(snapshot.running) - _SHOWN
        if more > 0:
            table.add_row("", f"and {more} more")
        so_far = Text(", ".join(far(snapshot)), style="dim")
        return Group(table, so_far) if snapshot.running else so_far
