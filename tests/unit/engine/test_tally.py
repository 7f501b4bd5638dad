"""How far a build is: what runs, what is done, how long the rest takes."""

from __future__ import annotations

import pytest

from epctx.engine.events import Event, State
from epctx.engine.tally import Tally


class Build:
    """A tally, and a clock that stands still until it is turned on."""

    def __init__(self, **groups: float | None) -> None:
        self.now = 1000.0
        self.tally = Tally(lambda: self.now)
        self.tally.expect(groups)

    def run(
        self, group: str, stage: str = "compile", subject: str = "m", detail: str | None = None
    ) -> None:
        event = Event(group=group, state="running", subject=subject, stage=stage, detail=detail)
        self.tally.hear(event)

    def end(self, group: str, state: State = "verified", subject: str = "m") -> None:
        self.tally.hear(Event(group=group, state="done", subject=subject))
        self.tally.hear(Event(group=group, state=state))

    def after(self, seconds: float) -> float | None:
        self.now += seconds
        return self.tally.snapshot().left


def test_what_runs_longest_comes_first_and_says_how_far_it_is() -> None:
    build = Build(a=None, b=None)
    build.run("a")
    build.after(5)
    build.run("b", "load")
    build.after(2)
    build.run("b", "verify", detail="set 1 of 2")
    build.after(1)
    build.run("a", detail="half of it")
    running = build.tally.snapshot().running
    assert [(each.group, each.stage, each.seconds, each.detail) for each in running] == [
        ("a", "compile", 8, "half of it"),
        ("b", "verify", 1, "set 1 of 2"),
    ]


def test_groups_are_counted_by_how_they_ended() -> None:
    build = Build(a=None, b=None, c=None)
    ends: tuple[tuple[str, State], ...] = (("a", "verified"), ("b", "failed"), ("a", "built"))
    for name, state in ends:
        build.run(name)
        build.end(name, state)
    standing = build.tally.snapshot()
    assert (standing.done, standing.groups) == (2, 3)
    assert standing.states == {"built": 1, "failed": 1} and not standing.running


def test_a_composition_is_one_more_and_who_expects_nothing_counts_none() -> None:
    build = Build(a=None)
    build.end("a")
    build.end("whole")
    assert (build.tally.snapshot().done, build.tally.snapshot().groups) == (2, 2)
    build = Build()
    build.end("a")
    assert (build.tally.snapshot().done, build.tally.snapshot().groups) == (1, None)


def test_what_groups_took_last_is_what_is_left() -> None:
    build = Build(a=60, b=30)
    assert build.after(0) == 90
    build.run("a")
    assert build.after(10) == 80
    build.run("b")
    assert build.after(0) == 40, "two at a time"
    build.end("b")
    assert build.after(20) == 30, "one, alone"
    assert build.after(40) is None, "it takes longer than it did"


def test_of_a_group_that_nobody_knows_those_that_are_done_tell() -> None:
    build = Build(a=None, b=None, c=None)
    build.run("a")
    assert build.after(20) is None
    build.end("a")
    assert build.after(0) == 40
    build.run("b")
    assert build.after(5) == pytest.approx(35)
