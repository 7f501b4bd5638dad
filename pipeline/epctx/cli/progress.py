"""How a build shows itself while it runs: live on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from epctx.cli.render import UI
from epctx.events import Event, Listener

STATE_STYLES = {
    "built": "green",
    "up to date": "green",
    "failed": "bold red",
    "skipped": "yellow",
    "waiting": "yellow",
    "notice": "yellow",
}


@contextmanager
def live(ui: UI) -> Iterator[Listener]:
    """A listener that shows a build's events on stderr for as long as the context is open."""
    if ui.quiet:
        yield lambda event: None
    elif ui.err.is_terminal and not ui.err.is_dumb_terminal:
        board = _Board(ui)
        with Live(board, console=ui.err, refresh_per_second=8, transient=True):
            yield board.hear
    else:
        yield lambda event: ui.note(_line(event))


class _Board:
    """What runs now, one line a subject, with the seconds that its stage has taken; then how many
    groups have ended. A failure is told when it happens, and stays.
    """

    def __init__(self, ui: UI) -> None:
        self._ui = ui
        self._running: dict[str, tuple[Spinner, str, float]] = {}
        self._ended: Counter[str] = Counter()

    def hear(self, event: Event) -> None:
        if event.state == "running":
            key = f"{event.group} {event.subject or ''}"
            line = f"{key}: {event.stage}"
            self._running[key] = (Spinner("dots"), line, time.monotonic())
            return
        if event.state in ("failed", "waiting", "notice"):
            self._ui.note(_line(event))
        if event.state in ("waiting", "notice"):
            return
        for running in [k for k in self._running if k.startswith(f"{event.group} ")]:
            del self._running[running]
        self._ended[event.state] += 1

    def __rich__(self) -> RenderableType:
        now = time.monotonic()
        table = Table.grid(padding=(0, 1))
        for spinner, line, since in list(self._running.values()):
            table.add_row(spinner, line, Text(f"{now - since:.0f} s", style="dim"))
        counts = ", ".join(f"{count} {state}" for state, count in self._ended.items())
        return Group(table, Text(counts, style="dim"))


def _line(event: Event) -> Text:
    if event.state == "running":
        subject = f"{event.subject}: " if event.subject else ""
        return Text(f"{event.group}: {subject}{event.stage}")
    if event.state == "waiting":
        subject = f"{event.subject}: " if event.subject else ""
        return Text(f"{event.group}: {subject}waiting, {event.detail}", style="yellow")
    if event.state == "notice":
        return Text(f"{event.group}: {event.detail}", style="yellow")
    return Text(f"{event.group}: {event.state}", style=STATE_STYLES[event.state])
