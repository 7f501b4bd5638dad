"""How a build shows itself while it runs: live on a terminal, a line a group in a log."""

import io
import re
import time

import pytest
from rich.console import Console

from epctx.cli import progress
from epctx.cli.render import UI
from tests.kit.shown import EVENTS, told

LINES = [
    "m: waiting, another command uses the output",
    "a@x: failed (1 of 2 groups, 1 failed, 0 s)",
    "b@x: verified (2 of 2 groups, 1 failed, 0 s)",
]


@pytest.mark.parametrize(
    ("terminal", "term"), [(False, "xterm"), (True, "dumb")], ids=["log", "without a cursor"]
)
def test_a_log_gets_a_line_a_group(terminal: bool, term: str) -> None:
    lines = told(terminal=terminal, term=term).splitlines()
    assert [re.sub(r"\d+ s", "0 s", line) for line in lines] == LINES


def test_a_log_is_not_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENCE", 0.1)
    stream = io.StringIO()
    ui = UI()
    ui.err = Console(file=stream, force_terminal=False)
    with progress.live(ui) as shown:
        for event in EVENTS[4:6]:
            shown(event)
        until = time.monotonic() + 300
        while stream.getvalue().count("\n") < 2 and time.monotonic() < until:
            time.sleep(0.01)
    first, second, *_ = stream.getvalue().splitlines()
    beat = r"still at work: \d+ s; b@x two: compile for \d+ s, set 1 of 2"
    assert re.fullmatch(beat, first) and re.fullmatch(beat, second)


def test_quiet_shows_nothing() -> None:
    assert told(terminal=True, quiet=True) == told(terminal=False, quiet=True) == ""
