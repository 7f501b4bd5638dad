"""How a build shows itself while it runs: live on a terminal, a line a group in a log."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from epctx.cli import render
from epctx.cli.render import UI
from epctx.engine.events import Event
from epctx.engine.tally import Running, Standing, Tally
from epctx.text import time_words

STATE_STYLES = {
    "verified": "green",
    "built": "green",
    "up to date": "green",
    "failed": "bold red",
    "skipped": "yellow",
    "waiting": "yellow",
    "notice": "yellow",
}
SILENCE: Final = 30.0
"""Seconds after which a log is told what runs: a CI system takes a silent job for a dead one."""
_SHOWN: Final = 8
"""What runs at a time and is shown on a terminal, at most."""


class Shown:
    """A build's listener, and who is told what it is going to build: shows nothing."""

    def __init__(self) -> None:
        self._tally = Tally()

    def expect(self, groups: Mapping[str, float | None]) -> None:
        """As of `events.Expect`."""
        self._tally.expect(groups)

    def __call__(self, event: Event) -> None:
        """As of `events.Listener`."""
        self._tally.hear(event)


@contextmanager
def live(ui: UI) -> Iterator[Shown]:
    """What shows a build on stderr for as long as the context is open."""
    if ui.quiet:
        yield Shown()
    elif ui.lines:
        yield _Lines(ui)
    elif ui.err.is_terminal and not ui.err.is_dumb_terminal:
        with _Board(ui) as board:
            yield board
    else:
        with _Log(ui) as log:
            yield log


class _Lines(Shown):
    """JSON, a line an event."""

    def __init__(self, ui: UI) -> None:
        super().__init__()
        self._ui = ui

    def __call__(self, event: Event) -> None:
        self._ui.event(event)


class _Log(Shown):
    """A line when a group has ended, and whenever there was none for long; every event with -v."""

    def __init__(self, ui: UI) -> None:
        super().__init__()
        self._ui = ui
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._watcher = threading.Thread(target=self._break_silence, daemon=True)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended = True
        self._wake.set()
        self._watcher.join()

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        every = bool(self._ui.verbose) and event.state != "done"
        if every or event.state in ("waiting", "notice"):
            self._say(_line(event))
        elif event.state not in ("running", "done") and event.group not in self._told:
            self._told.add(event.group)
            self._say(_line(event).append(_count(self._tally.standing()), "not bold default"))

    def _say(self, line: Text) -> None:
        with self._lock:
            self._ui.note(line)
        self._wake.set()

    def _break_silence(self) -> None:
        while not self._ended:
            if not self._wake.wait(SILENCE):
                with self._lock:
                    self._ui.note(_heartbeat(self._tally.standing()))
            self._wake.clear()


class _Board(Shown):
    """What runs now, what has run longest first; then how far the build is. What fails is told when
    it happens, and stays.
    """

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
        super().__call__(event)
        if event.state in ("waiting", "notice", "failed"):
            self._ui.note(_line(event))
        if event.state == "running" and not self._shows_any:
            self._shows_any = True
            self._live.refresh()  # else what is short is over before it is shown

    def __rich__(self) -> RenderableType:
        standing = self._tally.standing()
        table = Table.grid(padding=(0, 1))
        for each in standing.running[:_SHOWN]:
            time = Text(time_words(each.seconds), style="dim")
            table.add_row(self._spinner, _name(each), time, Text(each.detail or "", style="dim"))
        more = len(standing.running) - _SHOWN
        if more > 0:
            table.add_row("", f"and {more} more")
        far = Text(", ".join(_far(standing)), style="dim")
        return Group(table, far) if standing.running else far


def _name(running: Running) -> str:
    subject = f" {running.subject}" if running.subject else ""
    return f"{running.group}{subject}: {running.stage}"


def _far(standing: Standing) -> Iterator[str]:
    """How far a build is, in words."""
    if standing.groups is not None and standing.groups > 1:
        yield f"{standing.done} of {standing.groups} groups"
    for state, count in standing.states.items():
        if standing.groups is None or state in ("failed", "skipped"):
            yield f"{count} {state}"
    yield time_words(standing.seconds)
    if standing.left is not None:
        yield f"about {_roughly(standing.left)} left"


def _roughly(seconds: float) -> str:
    if seconds <= 55:
        return time_words(5 * math.ceil(seconds / 5))
    minutes = math.ceil(seconds / 60)
    return time_words(60 * minutes) if minutes >= 60 else f"{minutes} min"


def _count(standing: Standing) -> str:
    """After a group's line: how far the build is, where it has several."""
    return f" ({', '.join(_far(standing))})" if (standing.groups or 0) > 1 else ""


def _heartbeat(standing: Standing) -> Text:
    text = f"still at work: {', '.join(_far(standing))}"
    if standing.running:
        slowest, *others = standing.running
        detail = f", {slowest.detail}" if slowest.detail else ""
        more = f"; and {len(others)} more" if others else ""
        text += f"; {_name(slowest)} for {time_words(slowest.seconds)}{detail}{more}"
    return Text(text)


def _line(event: Event) -> Text:
    if event.state == "running":
        subject = f"{event.subject}: " if event.subject else ""
        detail = f", {event.detail}" if event.detail else ""
        return Text(f"{event.group}: {subject}{event.stage}{detail}")
    if event.state == "waiting":
        subject = f"{event.subject}: " if event.subject else ""
        return Text(f"{event.group}: {subject}waiting, {event.detail}", style="yellow")
    if event.state == "notice":
        return Text(f"{event.group}: {event.detail}", style="yellow")
    text = Text(f"{event.group}: {event.state}", style=STATE_STYLES[event.state])
    if event.state == "failed" and event.detail:
        text.append(f": {render.shortened(event.detail)}", style="default")
    return text
