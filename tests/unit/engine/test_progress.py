"""Progress of a group: events, stages, and the estimated time of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from epctx.actions.action import Action, StageStarted
from epctx.actions.golden import Golden, GoldenResult
from epctx.cache import Cache, Location
from epctx.engine.events import Event
from epctx.engine.executor import WorkerLease
from epctx.engine.progress import Eta, Events, Progress, RunTime, RunTimes
from epctx.errors import CompileError, Interrupted
from epctx.files.digest import of_bytes

JOB = Golden(built=Path("/built"), folder=Path("/folder"))
DONE = GoldenResult(files=())
LOAD, OPTIMIZE = StageStarted(stage="load"), StageStarted(stage="optimize")


class FakeLane:
    """Carries out a job by going through stages; a step that is an error ends it."""

    def __init__(self, *steps: StageStarted | Exception) -> None:
        self._steps = steps
        self.asked: dict[str, object] = {}
        self.machine: str | None = None
        self.peak_memory = 0

    def run(
        self,
        job: Sequence[Action[Any]],
        *,
        started: Callable[[StageStarted], None],
        finished: Callable[[int, Any], None],
        **asked: object,
    ) -> list[Any]:
        self.asked = asked
        for step in self._steps:
            if isinstance(step, Exception):
                raise step
            started(step)
        for number in range(len(job)):
            finished(number, DONE)
        return [DONE] * len(job)


class Heard:
    """A progress, and what its listener heard of it."""

    def __init__(self, *, timeout: float | None = None) -> None:
        self.events: list[Event] = []
        self.progress = Progress("g@x", Events(self.events.append), timeout=timeout)

    def run(self, *steps: StageStarted | Exception, peak_memory: int = 0) -> FakeLane:
        lease = FakeLane(*steps)
        lease.peak_memory = peak_memory
        self.progress.run(cast(WorkerLease, lease), "main", JOB)
        return lease

    def lines(self) -> list[tuple[str, str | None, str | None]]:
        assert {event.group for event in self.events} <= {"g@x"}
        return [(event.state, event.subject, event.stage) for event in self.events]


def test_a_job_that_fails_is_timed_up_to_there() -> None:
    heard = Heard()
    with pytest.raises(CompileError, match="crashed"):
        heard.run(LOAD, CompileError("crashed", remedy="see its log"))
    assert [stage.stage for stage in heard.progress.stages] == ["load"]
    assert heard.lines()[-1] == ("done", "main", None)


def test_a_wait_is_told_once_and_ends_when_there_is_no_point() -> None:
    heard = Heard()
    asked: list[int] = []

    def proceed() -> None:
        asked.append(1)
        if len(asked) == 3:
            raise Interrupted("another group failed", remedy="see its error")

    wait = heard.progress.waiting("another build compiles it", "main", proceed)
    wait()
    wait()
    with pytest.raises(Interrupted):
        wait()
    (event,) = heard.events
    assert (event.state, event.subject) == ("waiting", "main")
    assert event.detail == "another build compiles it"


KEY = of_bytes(b"a compile")


def pace(folder: Path, *models: str) -> RunTimes:
    records = Cache(Location(folder=folder), lambda text: None).records
    return RunTimes(records=records, compiled=dict.fromkeys(models, KEY))


def run(model: str, number: int, of: int) -> StageStarted:
    return StageStarted(stage="verify", model=model, number=number, of=of)


def test_the_first_set_tells_how_long_the_others_take(tmp_path: Path) -> None:
    told = Eta(pace(tmp_path, "m"))
    assert told.announce(run("m", 1, 3), 100.0) == "numbers: set 1 of 3"
    assert told.announce(run("m", 2, 3), 160.0) == "numbers: set 2 of 3, about 2 min left"
    assert told.announce(run("m", 3, 3), 220.0) == "numbers: set 3 of 3, about 60 s left"
    told.ended(300.0)
    told.ended(390.0)
    told.note(7)
    assert pace(tmp_path, "m").find("m") == RunTime(seconds=80.0, peak_memory=7)


def test_of_several_models_it_says_which_and_counts_those_to_come(tmp_path: Path) -> None:
    known = pace(tmp_path, "m", "n", "o")
    known.note("m", RunTime(seconds=10.0, peak_memory=7))
    known.note("o", RunTime(seconds=40.0, peak_memory=7))
    told = Eta(known)
    assert told.announce(run("m", 1, 1), 0.0) == (
        "numbers: model 1 of 3, m, set 1 of 1, about 60 s left"
    )
    assert told.announce(run("n", 1, 1), 9.0) == "numbers: model 2 of 3, n, set 1 of 1"
