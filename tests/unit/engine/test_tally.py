"""How far a build is: what runs, what is done, how long the rest takes."""

from __future__ import annotations

from epctx.engine.events import Event, State, Tally


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
