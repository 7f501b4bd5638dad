"""What a group's jobs took, and what of them a user hears: each stage once, then its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from epctx.actions.action import Action, StageStarted
from epctx.actions.golden import Golden, GoldenResult
from epctx.cache import Cache, Location
from epctx.cache.action import Origin
from epctx.engine.events import Event
from epctx.engine.executor import WorkerLease
from epctx.engine.pace import RunTimes
from epctx.engine.progress import Events, Progress
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


def compile_(model: str, provider: str) -> StageStarted:
    return StageStarted(stage="compile", model=model, provider=provider)


def test_each_stage_is_told_and_timed_one_after_the_other() -> None:
    heard = Heard()
    heard.run(LOAD, OPTIMIZE)
    assert heard.lines() == [
        ("running", "main", "load"),
        ("running", "main", "optimize"),
        ("done", "main", None),
    ]
    load, optimize = heard.progress.stages
    assert (load.stage, load.subject) == ("load", "main")
    assert 0 <= load.start <= load.end <= optimize.start <= optimize.end


def test_a_stage_that_goes_model_by_model_is_told_of_each() -> None:
    heard = Heard()
    heard.run(compile_("a", "QNN"), compile_("b", "QNN"))
    assert heard.lines() == [
        ("running", "a", "compile"),
        ("done", "a", None),
        ("running", "b", "compile"),
        ("done", "b", None),
    ]


def test_another_eps_turn_is_no_news() -> None:
    heard = Heard()
    heard.run(compile_("a", "QNN"), compile_("a", "OpenVINO"))
    assert heard.lines() == [("running", "a", "compile"), ("done", "a", None)]
    assert len(heard.progress.stages) == 1


def test_verify_is_one_stage_however_many_models_it_runs() -> None:
    heard = Heard()
    heard.run(*(StageStarted(stage="verify", model=name) for name in "abc"))
    assert heard.lines() == [("running", "a", "verify"), ("done", "a", None)]


def test_a_job_that_fails_is_timed_up_to_there() -> None:
    heard = Heard()
    with pytest.raises(CompileError, match="crashed"):
        heard.run(LOAD, CompileError("crashed", remedy="see its log"))
    assert [stage.stage for stage in heard.progress.stages] == ["load"]
    assert heard.lines()[-1] == ("done", "main", None)


def test_a_job_that_enters_no_stage_is_not_told() -> None:
    heard = Heard()
    heard.run()
    assert heard.events == [] and heard.progress.stages == []


def test_each_job_has_the_groups_timeout() -> None:
    assert Heard(timeout=90).run(LOAD).asked["timeout"] == 90
    assert Heard().run(LOAD).asked["timeout"] is None


def test_a_job_has_its_limits_and_each_result_is_told_when_it_comes() -> None:
    lease, told = FakeLane(LOAD), list[tuple[int, object]]()
    Heard().progress.run_all(
        cast(WorkerLease, lease),
        "main",
        [JOB, JOB],
        finished=lambda number, result: told.append((number, result)),
        budget=3.0,
        memory=5,
    )
    assert lease.asked == {"timeout": None, "budget": 3.0, "memory": 5}
    assert told == [(0, DONE), (1, DONE)]


def test_the_largest_worker_is_remembered() -> None:
    heard = Heard()
    for size in (3, 9, 4):
        heard.run(LOAD, peak_memory=size)
    assert heard.progress.peak_memory == 9


def test_actions_are_noted_with_their_keys() -> None:
    progress, key = Heard().progress, of_bytes(b"key")
    progress.did("optimize", "a", None, Origin())
    progress.did("compile", "a", key, None)
    noted = [(a.action, a.subject, a.key, a.ran) for a in progress.actions]
    assert noted == [("optimize", "a", None, False), ("compile", "a", str(key), True)]


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


def test_runs_are_told_beside_their_stage_and_are_no_stage(tmp_path: Path) -> None:
    heard = Heard()
    verify = StageStarted(stage="verify", model="m")
    runs = [replace(verify, number=number, of=2) for number in (1, 2)]
    lease = FakeLane(StageStarted(stage="verify"), verify, *runs)
    lease.peak_memory = 7
    records = Cache(Location(folder=tmp_path), pytest.fail).records
    pace = RunTimes(records=records, compiled={"m": of_bytes(b"a compile")})
    heard.progress.run_all(cast(WorkerLease, lease), "main", [JOB], pace=pace)
    assert [(e.state, e.stage, e.detail) for e in heard.events] == [
        ("running", "verify", None),
        ("running", "verify", "numbers: set 1 of 2"),
        ("done", None, None),
    ]
    assert [stage.stage for stage in heard.progress.stages] == ["verify"]
    measured = pace.find("m")
    assert measured is not None and measured.peak_memory == 7, "the next build knows"
