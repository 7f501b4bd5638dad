"""Session groups verified beside each other, in lanes that a test controls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from epctx.actions.numbers import Verify
from epctx.engine.actions import checks
from epctx.engine.actions.room import Room
from epctx.engine.actions.simulate import Simulation
from epctx.engine.pace import Pace, Paced
from epctx.engine.plan import SessionGroup
from epctx.engine.progress import Events, GroupProgress
from epctx.engine.report import StageTime
from epctx.engine.scheduler import Scheduler
from epctx.engine.state import SessionState
from epctx.errors import CompileError
from epctx.manifest import ModelGroup, ModelSource
from epctx.verification.findings import Finding, FolderReport
from epctx.verification.request import VerifyRequest

NAMES = ("a", "b", "c")
MODELS = tuple(ModelSource(name=name, path=Path(f"{name}.onnx")) for name in NAMES)
Work = Callable[[VerifyRequest], FolderReport]


def staged(name: str) -> SessionState:
    session = SessionGroup(sharing=None, models=(MODELS[NAMES.index(name)],))
    known = SessionState(session=session, models=())
    msgspec.structs.force_setattr(known, "compile", output(name))
    return known


def output(name: str) -> Any:
    file = SimpleNamespace(name=f"{name}_ctx.onnx", blake3=None)
    return SimpleNamespace(result=SimpleNamespace(output=SimpleNamespace(files=(file,))))


class Lane:
    def __init__(self, work: Work, own: bool) -> None:
        self.own = own
        self._work = work

    peak_memory = 0

    def run(self, job: Sequence[Verify], **_: object) -> list[FolderReport]:
        return [self._work(each.request) for each in job]

    def hand_on(self) -> None:
        """Nothing is its own."""


def found(request: VerifyRequest) -> FolderReport:
    """What a job finds: which files it was to look at, by which policies."""
    files = {f"{name}_ctx.onnx" for name in NAMES} - set(request.passed)
    policy = request.policies[-1]
    return FolderReport(
        folder="g@x",
        findings=tuple(Finding(policy, "loads", file, "pass", "ok") for file in sorted(files)),
    )


class Group:
    """A group of three session groups; those that are `long` took a while to compile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[VerifyRequest] = []
        self.work: Work = found
        self.own = True
        monkeypatch.setattr(checks, "lane", self._lane)

    @contextmanager
    def _lane(self, actions: object, progress: object) -> Iterator[Lane]:
        def work(request: VerifyRequest) -> FolderReport:
            self.requests.append(request)
            return self.work(request)

        yield Lane(work, self.own)

    def run(self, *long: str, jobs: int = 2, known: float | None = None) -> FolderReport:
        paced = None if known is None else Paced(seconds=known, peak_memory=1)
        pace = SimpleNamespace(compiled={"m": None}, find=lambda model: paced)
        actions: Any = SimpleNamespace(room=Room(), pace=lambda sessions: cast(Pace, pace))
        group = ModelGroup(name="g", models=MODELS, execution_providers=())
        planned: Any = SimpleNamespace(group=group, label="g@x")
        progress = GroupProgress(planned, Events(lambda event: None))
        progress.stages += [StageTime(stage="compile", subject=n, start=0.0, end=9.0) for n in long]
        executor: Any = SimpleNamespace(cancel=lambda reason: None, close=lambda: None)
        request = VerifyRequest(folder=Path("f"), label="g@x", policies=("integrity", "numbers"))
        with Scheduler(executor, threads=jobs) as scheduler:
            new = [staged(name) for name in NAMES]
            simulation = Simulation(actions, scheduler, progress, new, request)
            return scheduler.submit(simulation.run).result()


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(monkeypatch)


def test_what_is_short_is_one_job(group: Group) -> None:
    group.run("a")
    assert [each.policies for each in group.requests] == [("integrity", "numbers")]
    group.requests.clear()
    group.own = False
    group.run(*NAMES)
    assert len(group.requests) == 1, "workers that are shared run many groups already"


def test_long_ones_run_beside_each_other_once_the_files_are_sound(group: Group) -> None:
    both = threading.Barrier(2)

    def work(request: VerifyRequest) -> FolderReport:
        if request.policies == ("numbers",) and "c_ctx.onnx" in request.passed:
            both.wait(10)
        return found(request)

    group.work = work
    report = group.run("a", "b")
    first, *others = group.requests
    assert first.policies == ("integrity",)
    assert all(each.policies == ("numbers",) for each in others)
    assert all(len(each.earlier) == 3 for each in others), "what failed there is not loaded"
    assert [f.subject for f in report.findings if f.policy == "numbers"] == [
        "a_ctx.onnx",
        "b_ctx.onnx",
        "c_ctx.onnx",
    ]


def test_one_thread_does_all_of_it_and_says_the_same(group: Group) -> None:
    assert group.run("a", "b", jobs=1) == group.run("a", "b", jobs=2)
    spent = [each.spent for each in group.requests if each.policies == ("numbers",)]
    assert all(each >= 0 for each in spent)


def test_what_was_measured_before_decides(group: Group) -> None:
    group.run(known=60.0)
    assert len(group.requests) == 4
    group.requests.clear()
    group.run(*NAMES, known=0.1)
    assert len(group.requests) == 1


def test_a_crash_of_one_is_raised_when_the_others_have_ended(group: Group) -> None:
    def work(request: VerifyRequest) -> FolderReport:
        if request.policies == ("numbers",) and "b_ctx.onnx" not in request.passed:
            raise CompileError("the simulator crashed", remedy="see its log")
        return found(request)

    group.work = work
    for jobs in (1, 3):
        with pytest.raises(CompileError, match="the simulator crashed"):
            group.run(*NAMES, jobs=jobs)
