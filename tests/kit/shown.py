"""A build's events, shown as a terminal or a log shows them."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable

from rich.console import Console

from epctx.cli import progress
from epctx.cli.render import UI
from epctx.engine.events import Event

EVENTS = [
    Event(group="m", state="waiting", detail="another command uses the output"),
    Event(group="a@x", state="running", subject="one", stage="load"),
    Event(group="a@x", state="running", subject="one", stage="optimize"),
    Event(group="a@x", state="done", subject="one"),
    Event(group="b@x", state="running", subject="two", stage="compile"),
    Event(group="b@x", state="running", subject="two", stage="compile", detail="set 1 of 2"),
    Event(group="a@x", state="failed", detail="m.onnx: is broken: why"),
    Event(group="b@x", state="done", subject="two"),
    Event(group="b@x", state="verified"),
    Event(group="b@x", state="built"),
]


def told(
    *,
    terminal: bool,
    quiet: bool = False,
    verbose: int = 0,
    term: str = "xterm",
    events: Iterable[Event] = EVENTS,
    wait: float = 0,
) -> str:
    """What is printed of `events`, with so many seconds after each."""
    stream = io.StringIO()
    ui = UI(quiet=quiet, verbose=verbose)
    ui.err = Console(
        file=stream, force_terminal=terminal, width=80, _environ={"TERM": term}, color_system=None
    )
    with progress.live(ui) as shown:
        shown.expect({"a@x": None, "b@x": None})
        for event in events:
            shown(event)
            time.sleep(wait)
    return stream.getvalue()
