"""How a build shows itself while it runs: live on a terminal, a line a group in a log."""

import io
import re
import time
from collections.abc import Iterable

import pytest
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


LINES = [
    "m: waiting, another command uses the output",
    "a@x: failed: m.onnx: is broken: why (1 of 2 groups, 1 failed, 0 s)",
    "b@x: verified (2 of 2 groups, 1 failed, 0 s)",
]


@pytest.mark.parametrize(
    ("terminal", "term"), [(False, "xterm"), (True, "dumb")], ids=["log", "without a cursor"]
)
def test_a_log_gets_a_line_a_group(terminal: bool, term: str) -> None:
    lines = told(terminal=terminal, term=term).splitlines()
    assert [re.sub(r"\d+ s", "0 s", line) for line in lines] == LINES


def test_a_verbose_log_gets_a_line_an_event() -> None:
    assert told(terminal=False, verbose=1).splitlines() == [
        "m: waiting, another command uses the output",
        "a@x: one: load",
        "a@x: one: optimize",
        "b@x: two: compile",
        "b@x: two: compile, set 1 of 2",
        "a@x: failed: m.onnx: is broken: why",
        "b@x: verified",
        "b@x: built",
    ]


def test_a_log_is_not_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE", 0.1)
    stream = io.StringIO()
    ui = UI()
    ui.err = Console(file=stream, force_terminal=False)
    with progress.live(ui) as shown:
        for event in EVENTS[4:6]:
            shown(event)
        until = time.monotonic() + 30
        while stream.getvalue().count("\n") < 2 and time.monotonic() < until:
            time.sleep(0.01)
    first, second, *_ = stream.getvalue().splitlines()
    beat = r"still at work: \d+ s; b@x two: compile for \d+ s, set 1 of 2"
    assert re.fullmatch(beat, first) and re.fullmatch(beat, second)


def test_a_group_alone_is_not_counted() -> None:
    stream = io.StringIO()
    ui = UI()
    ui.err = Console(file=stream, force_terminal=False)
    with progress.live(ui) as shown:
        shown.expect({"b@x": 3.0})
        shown(EVENTS[-2])
    assert stream.getvalue() == "b@x: verified\n"


def test_a_terminal_shows_what_runs_and_keeps_what_failed() -> None:
    shown = told(terminal=True, wait=0.15)
    for words in ("a@x one: load", "b@x two: compile 0 s set 1 of 2", "1 of 2 groups, 1 failed"):
        assert words in shown
    assert "a@x: failed: m.onnx: is broken: why\n" in shown and "b@x: built\n" not in shown
    last = shown.rpartition("b@x two: compile")[2]
    assert "one" not in last, "a stage that has ended is still shown"


@pytest.mark.parametrize(
    ("seconds", "left"),
    [
        (3, "5 s"),
        (31, "35 s"),
        (59, "1 min"),
        (61, "2 min"),
        (3500, "59 min"),
        (7100, "1 h 59 min"),
    ],
)
def test_what_is_left_is_told_roughly(seconds: float, left: str) -> None:
    """Of a group that took so long, when it begins."""
    stream = io.StringIO()
    ui = UI()
    ui.err = Console(file=stream, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    with progress.live(ui) as shown:
        shown.expect({"a@x": seconds})
        shown(EVENTS[1])
    assert f"m0 s, about {left} left" in stream.getvalue()


def test_quiet_shows_nothing() -> None:
    assert told(terminal=True, quiet=True) == told(terminal=False, quiet=True) == ""
