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

from epctx.cli import render
from epctx.cli.render import UI
from epctx.engine.events import Event, Listener

STATE_STYLES = {
    "verified": "green",
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
    elif ui.lines:
        yield ui.event
    elif ui.err.is_terminal and not ui.err.is_dumb_terminal:
        board = _Board(ui)
        with Live(board, console=ui.err, refresh_per_second=8, transient=True) as shown:

            def on_event(event: Event) -> None:
                first = not board.shows_any
                board.on_event(event)
                if first and board.shows_any:
                    shown.refresh()  # else what is short is over before it is shown

            yield on_event
    else:
        yield lambda event: None if event.state == "done" else ui.note(_line(event))


class _Board:
    """What runs now, one line a subject, with the seconds that its stage has taken; then how many
    groups have come how far. What fails is told when it happens, and stays.
    """

    def __init__(self, ui: UI) -> None:
        self._ui = ui
        self._running: dict[tuple[str, str | None], tuple[Spinner, str, float]] = {}
        self._states: dict[str, str] = {}

    @property
    def shows_any(self) -> bool:
        """Whether anything runs."""
        return bool(self._running)

    def on_event(self, event: Event) -> None:
        key = (event.group, event.subject)
        if event.state == "running":
            line = f"{event.group} {event.subject}: {event.stage}"
            self._running[key] = (Spinner("dots"), line, time.monotonic())
        elif event.state == "done":
            self._running.pop(key, None)
        elif event.state in ("waiting", "notice"):
            self._ui.note(_line(event))
        else:
            self._states[event.group] = event.state
            if event.state == "failed":
                self._ui.note(_line(event))

    def __rich__(self) -> RenderableType:
        now = time.monotonic()
        table = Table.grid(padding=(0, 1))
        for spinner, line, since in list(self._running.values()):
            table.add_row(spinner, line, Text(f"{now - since:.0f} s", style="dim"))
        counts = Counter(self._states.values())
        words = ", ".join(f"{count} {state}" for state, count in counts.items())
        return Group(table, Text(words, style="dim"))


def _line(event: Event) -> Text:
    if event.state == "running":
        subject = f"{event.subject}: " if event.subject else ""
        return Text(f"{event.group}: {subject}{event.stage}")
    if event.state == "waiting":
        subject = f"{event.subject}: " if event.subject else ""
        return Text(f"{event.group}: {subject}waiting, {event.detail}", style="yellow")
    if event.state == "notice":
        return Text(f"{event.group}: {event.detail}", style="yellow")
    text = Text(f"{event.group}: {event.state}", style=STATE_STYLES[event.state])
    if event.state == "failed" and event.detail:
        text.append(f": {render.shortened(event.detail)}", style="default")
    return text
