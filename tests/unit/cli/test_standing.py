"""How far a build is, in words."""

import pytest

from epctx.cli import standing
from epctx.engine.events import Event
from tests.kit.shown import told


def test_a_verbose_log_gets_a_line_an_event() -> None:
    assert told(terminal=False, verbose=1).splitlines() == [
        "m: waiting, another command uses the output",
        "a@x: one: load",
        "a@x: one: optimize",
        "b@x: two: compile",
        "b@x: two: compile, set 1 of 2",
        "a@x: failed",
        "b@x: verified",
        "b@x: built",
    ]


def test_a_group_whose_numbers_were_not_run_is_not_verified() -> None:
    event = Event(group="a@x", state="verified", detail="numbers not run: budget (5 s are used up)")
    assert str(standing.line(event)) == "a@x: built, numbers not run"
    event = Event(group="a@x", state="verified", detail="on given inputs")
    assert str(standing.line(event)) == "a@x: verified on given inputs"


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
    shown = standing.Shown()
    shown.expect({"a@x": seconds})
    shown(Event(group="a@x", state="running", subject="one", stage="load"))
    assert ", ".join(standing.far(shown.tally.snapshot())) == f"0 s, about {left} left"
