"""A build while it runs: live on a terminal, lines in a log."""

import io
import time

from rich.console import Console

from epctx.cli.progress import live
from epctx.cli.render import UI
from epctx.engine.events import Event

EVENTS = [
    Event(group="m", state="waiting", detail="another command uses the output"),
    Event(group="a@x", state="running", subject="one", stage="load"),
    Event(group="a@x", state="running", subject="one", stage="optimize"),
    Event(group="a@x", state="done", subject="one"),
    Event(group="b@x", state="running", subject="two", stage="compile"),
    Event(group="a@x", state="failed", detail="m.onnx: is broken: why"),
    Event(group="b@x", state="done", subject="two"),
    Event(group="b@x", state="verified"),
    Event(group="b@x", state="built"),
]


def told(*, terminal: bool, quiet: bool = False, term: str = "xterm") -> str:
    stream = io.StringIO()
    ui = UI(quiet=quiet)
    ui.err = Console(
        file=stream, force_terminal=terminal, width=80, _environ={"TERM": term}, color_system=None
    )
    with live(ui) as listener:
        for event in EVENTS:
            listener(event)
            time.sleep(0.15 if terminal else 0)
    return stream.getvalue()


LINES = [
    "m: waiting, another command uses the output",
    "a@x: one: load",
    "a@x: one: optimize",
    "b@x: two: compile",
    "a@x: failed: m.onnx: is broken: why",
    "b@x: verified",
    "b@x: built",
]


def test_a_log_gets_a_line_an_event() -> None:
    assert told(terminal=False).splitlines() == LINES


def test_so_does_a_terminal_that_cannot_move_its_cursor() -> None:
    assert told(terminal=True, term="dumb").splitlines() == LINES


def test_a_terminal_shows_what_runs_and_keeps_what_failed() -> None:
    shown = told(terminal=True)
    for words in ("a@x one: load", "b@x two: compile", "1 failed, 1 verified", "1 failed, 1 built"):
        assert words in shown
    assert "a@x: failed: m.onnx: is broken: why\n" in shown and "b@x: built\n" not in shown
    last = shown.rpartition("b@x two: compile")[2]
    assert "one" not in last, "a stage that has ended is still shown"


def test_quiet_shows_nothing() -> None:
    assert told(terminal=True, quiet=True) == told(terminal=False, quiet=True) == ""
