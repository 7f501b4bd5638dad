"""Progress of a running build: live on a terminal, a line for each group in a log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

from rich.text import Text

from epctx.cli.board import Board
from epctx.cli.render import UI
from epctx.cli.standing import Shown, count, heartbeat, line
from epctx.engine.events import Event

SILENCE: Final = 30.0
"""Seconds of silence after which a log gets a line. CI systems end jobs that write nothing."""


@contextmanager
def live(ui: UI) -> Iterator[Shown]:
    """Show a build on stderr while the context is open."""
    if ui.quiet:
        yield Shown()
    elif ui.lines:
        yield _Lines(ui)
    elif ui.is_live:
        with Board(ui) as board:
            yield board
    else:
        with _Log(ui) as log:
            yield log


class _Lines(Shown):
    """Print each event as a line of JSON."""

    def __init__(self, ui: UI) -> None:
        super().__init__()
        self._ui = ui

    def __call__(self, event: Event) -> None:
        self._ui.event(event)


class _Log(Shown):
    """Print a line when a group ends, and after a long silence; every event with -v."""

    def __init__(self, ui: UI) -> None:
        super().__init__()
        self._ui = ui
        self._reported: set[str] = set()
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
            self._say(line(event))
        elif event.state not in ("running", "done") and event.group not in self._reported:
            self._reported.add(event.group)
            self._say(line(event).append(count(self.tally.snapshot()), "not bold default"))

    def _say(self, line: Text) -> None:
        with self._lock:
            self._ui.note(line)
        self._wake.set()

    def _break_silence(self) -> None:
        while not self._ended:
            if not self._wake.wait(SILENCE):
                with self._lock:
                    self._ui.note(heartbeat(self.tally.snapshot()))
            self._wake.clear()
