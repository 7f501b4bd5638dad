"""Runs of models in a build: who is ended and blamed, what is run, and what is known already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest

from epctx.actions.run_models import RunFiles, RunSource, SourceResult
from epctx.actions.verify import Check
from epctx.engine.actions import numbers
from epctx.engine.actions.numbers import Numbers
from epctx.engine.executor import Cancelled
from epctx.engine.plan import SessionGroup
from epctx.engine.progress import Events, GroupProgress
from epctx.engine.report import BuildReport
from epctx.engine.state import ModelState, SessionState
from epctx.errors import (
    CompileError,
    EpctxError,
    Failure,
    ModelError,
    TimedOut,
    VerificationError,
)
from epctx.manifest import ModelGroup, ModelSource, ProviderSpec
from epctx.verification.findings import FolderReport
from epctx.verification.numbers import sessions
from tests.kit import onnx_text
from tests.kit.projects import Project, ran

# --- a source beside a compile, in leases that a test controls ---

M = ModelSource(name="m", path=Path("m.onnx"))
GROUP = ModelGroup(
    name="g",
    models=(M,),
    execution_providers=(ProviderSpec(alias="htp", provider="QNNExecutionProvider"),),
)
BROKEN = ModelError("the source model does not run", model="m", remedy="correct it")


class WorkerLease:
    """Runs `work`; what cancels it is what its job raises."""

    machine: str | None = None
    peak_memory = 0

    def __init__(self, work: Callable[[WorkerLease], str | None] = lambda lease: None) -> None:
        self.own = True
        self.reason: EpctxError | None = None
        self.ended = threading.Event()
        self.indices: list[int] = []
        self._work = work

    def run(
        self, job: Sequence[RunSource], *, finished: Callable[[int, object], None], **_: object
    ) -> list[SourceResult]:
        self.indices = [each.index for each in job]
        results = [SourceResult(unfed=self._work(self)) for _ in job]
        for number, result in enumerate(results):
            finished(number, result)
        return results

    def cancel(self, reason: EpctxError) -> None:
        self.reason = self.reason or reason
        self.ended.set()


def raising(error: Exception) -> Callable[[WorkerLease], str | None]:
    def work(lease: WorkerLease) -> None:
        raise error

    return work


def until_cancelled(lease: WorkerLease) -> None:
    assert lease.ended.wait(30)
    assert lease.reason is not None
    raise lease.reason


class Beside:
    """A session group that compiles in one lease, while its source runs in another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = True

    @contextmanager
    def __call__(self, lease: WorkerLease, compiling: WorkerLease) -> Iterator[Any]:
        @contextmanager
        def shared(eps: object) -> Iterator[WorkerLease]:
            yield lease

        lookup = SimpleNamespace(
            cache=None,
            inputs=lambda group: self.runs or None,
            toolchain=SimpleNamespace(native=lambda eps: True),
        )
        actions: Any = SimpleNamespace(lookup=lookup, work=self.folder, shared_lease=shared)
        planned: Any = SimpleNamespace(group=GROUP, label="g@default")
        progress = GroupProgress(planned, Events(lambda event: None))
        session = SessionGroup(sharing=None, models=(M,))
        known = SessionState(session=session, models=(ModelState(source=M),))
        leases = Numbers(actions, cast(Any, None))
        with leases.beside(progress, known, cast(Any, compiling)) as run:
            yield run


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    return Beside(tmp_path)


def test_a_source_that_fails_ends_the_compile(beside: Beside) -> None:
    compiling = WorkerLease()
    with beside(WorkerLease(raising(BROKEN)), compiling) as run:
        assert compiling.ended.wait(30)
        assert compiling.reason is BROKEN
        with pytest.raises(ModelError):
            run.result()


def test_a_compile_that_fails_ends_the_source(beside: Beside) -> None:
    lease, compiling = WorkerLease(until_cancelled), WorkerLease()
    with pytest.raises(CompileError), beside(lease, compiling):
        raise CompileError("cannot", remedy="none")
    assert isinstance(lease.reason, Cancelled) and compiling.reason is None


def test_a_crash_is_the_sources_own(beside: Beside) -> None:
    """No EP was in that process."""
    crash = CompileError("the worker process crashed, SIGSEGV", remedy="see the log")
    late = TimedOut("no result within 3 s", remedy="raise `timeout`")
    words = "cannot run the source model: the worker process"
    with (
        beside(WorkerLease(raising(crash)), WorkerLease()) as run,
        pytest.raises(ModelError, match=words),
    ):
        run.result()
    with beside(WorkerLease(raising(late)), WorkerLease()) as run, pytest.raises(TimedOut):
        run.result()


def test_what_ends_for_the_lack_of_memory_says_nothing(beside: Beside) -> None:
    """Verification runs the source again, when nothing is compiled beside it."""
    ended = CompileError("the worker process was ended: it had 9 GiB", remedy="none")
    ended.starved = True
    compiling = WorkerLease()
    with beside(WorkerLease(raising(ended)), compiling) as run:
        assert run.result() == {}
    assert compiling.reason is None


def test_the_ep_is_blamed_for_what_the_source_runs(beside: Beside) -> None:
    def unrun(*errors: EpctxError) -> tuple[Failure, ...]:
        return tuple(error.failure for error in errors)

    refused = CompileError("QNN cannot run what it compiled", model="m", remedy="see the log")
    lease = WorkerLease()
    with beside(lease, WorkerLease()) as run:
        numbers.judge(run.result(), unrun())
        with pytest.raises(CompileError, match="QNN cannot run what it compiled"):
            numbers.judge(run.result(), unrun(refused))
    assert lease.indices == [*range(GROUP.verify.inputs.sets + 1)]
    with beside(WorkerLease(lambda lease: "it runs on zeros"), WorkerLease()) as run:
        numbers.judge(run.result(), unrun(refused))
    with beside(WorkerLease(raising(BROKEN)), WorkerLease()) as run, pytest.raises(ModelError):
        numbers.judge(run.result(), unrun(refused))
    with pytest.raises(CompileError):
        numbers.judge({}, unrun(refused))


# --- runs of a small build ---

Name = tuple[str, str, int | None]
"""An action's kind, its model, and its input set; the last but one is no set of the manifest's."""


class Runs:
    """Hears of each run before it is carried out; `before` may end it.

    Attributes:
        done: those that were not ended, in the order of their ends.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before: Callable[[str, str, int | None], None] = lambda kind, model, index: None
        self.done: list[Name] = []
        self._hear(monkeypatch, RunSource, lambda run: (run.source.name, run.index))
        self._hear(monkeypatch, RunFiles, lambda run: (str(run.only), run.index))
        self._hear(monkeypatch, Check, lambda check: ("", None))

    def _hear(
        self, monkeypatch: pytest.MonkeyPatch, kind: Any, named: Callable[[Any], Any]
    ) -> None:
        real = kind.run

        def run(action: Any, worker: object) -> object:
            self.before(kind.kind, *named(action))
            result = real(action, worker)
            self.done.append((kind.kind, *named(action)))
            return result

        monkeypatch.setattr(kind, "run", run)

    def taken(self) -> list[Name]:
        """Return the names since the last call, sorted, without checks."""
        done, self.done = self.done, []
        return sorted(each for each in done if each[0] != "check")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


@pytest.fixture
def one(project: Project) -> Project:
    """The project with model `a` alone."""
    project.document["models"] = {"a": {"path": "a.onnx"}}
    project.section("model_groups", "g")["models"] = ["a"]
    return project


def verified(report: BuildReport) -> FolderReport:
    (group,) = report.groups
    assert group.verify is not None and group.failure is None
    assert not [f for f in group.verify.findings if f.outcome != "pass"]
    return group.verify


def sets(report: BuildReport) -> set[str]:
    return {each.input_set for each in verified(report).numbers}


ALL = [("run", "a", 0), ("run", "a", 1), ("source", "a", 0), ("source", "a", 1)]


def test_each_run_is_stored_when_it_ends(one: Project, runs: Runs) -> None:
    def fail(*run: object) -> None:
        if run == ("run", "a", 1):
            raise CompileError("the simulator crashed", remedy="see its log")

    runs.before = fail
    with pytest.raises(CompileError, match="the simulator crashed"):
        one.build()
    assert runs.taken() == [each for each in ALL if each != ("run", "a", 1)]
    runs.before = lambda *run: None
    assert sets(one.build()) == {"seed 0, set 0"}
    assert runs.taken() == [("run", "a", 1)]


def test_another_tolerance_runs_no_model(one: Project, runs: Runs) -> None:
    one.build()
    assert runs.taken() == ALL
    one.section("defaults", "verify", "tolerance")["max_abs"] = 0.5
    report = one.build()
    assert ran(report) == [("verify", "g")] and sets(report) == {"seed 0, set 0"}
    assert runs.taken() == []


def test_more_input_sets_run_only_the_new_ones(one: Project, runs: Runs) -> None:
    for count in (1, 2, 3):
        one.section("defaults", "verify", "inputs")["count"] = count
        assert sets(one.build()) == {f"seed 0, set {index}" for index in range(count)}
        new = {0, 1} if count == 1 else {count - 1, count}
        assert {index for _, _, index in runs.taken()} == new
    one.section("defaults", "verify", "inputs")["count"] = 2
    assert len(sets(one.build())) == 2 and runs.taken() == []


def test_two_targets_run_their_source_once(one: Project, runs: Runs) -> None:
    one.document["targets"] = {"x": {}, "y": {}}
    report = one.build(jobs=1)
    assert {group.state for group in report.groups} == {"built"}
    assert runs.taken() == ALL, "what they compiled is the same, too"


def test_session_groups_run_beside_each_other_once_the_files_are_sound(
    project: Project, runs: Runs
) -> None:
    both = threading.Barrier(2)

    def meet(kind: str, model: str, index: int | None) -> None:
        if (kind, index) == ("run", 0):
            assert runs.done[0][0] == "check"
            both.wait(30)

    runs.before = meet
    report = verified(project.build(cache=False, jobs=2))
    runs.before, runs.done = lambda *run: None, []
    assert verified(project.build(cache=False, jobs=1)) == report
    assert {model for _, model, _ in runs.taken()} == {"a", "b"}


def test_a_crash_of_one_is_raised_when_the_others_have_ended(project: Project, runs: Runs) -> None:
    both, failed = threading.Barrier(2), threading.Event()

    def crash(kind: str, model: str, index: int | None) -> None:
        if (kind, index) == ("run", 0):
            both.wait(30)
            if model == "b":
                failed.set()
                raise CompileError("the simulator crashed", remedy="see its log")
            assert failed.wait(30)

    runs.before = crash
    with pytest.raises(CompileError, match="the simulator crashed"):
        project.build(jobs=2)
    assert ("run", "a", 1) in runs.done
    runs.before, runs.done = lambda *run: None, []
    verified(project.build())
    assert runs.taken() == [("run", "b", 0), ("run", "b", 1)]


def test_a_run_that_failed_is_tried_again(
    one: Project, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(session: object, feeds: object) -> None:
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr(sessions, "run_files", lost)
        with pytest.raises(VerificationError, match="device lost"):
            one.build()
    assert runs.taken() == ALL
    verified(one.build())
    assert runs.taken() == [("run", "a", 0), ("run", "a", 1)]


def test_what_is_known_of_a_source_is_told_of_its_model_by_each_name(
    one: Project, runs: Runs
) -> None:
    """Its name is in no key: the build by another one runs no source."""
    text = "g (float[1,4] x, bool c) => (float[1,4] y) { a = Neg(x) b = Abs(x) y = Where(c, a, b) }"
    onnx.save(onnx_text.proto(text), one.folder / "a.onnx")
    np.savez(one.folder / "i.npz", x=np.ones((1, 4), np.float32), c=np.array(True))
    one.section("defaults", "verify")["inputs"] = {"files": ["i.npz"]}
    told = []
    for name in "ab":
        one.document["models"] = {name: {"path": "a.onnx"}}
        one.section("model_groups", "g")["models"] = [name]
        found = one.build().groups[0].verify
        assert found is not None
        told += [(f.subject, f.message) for f in found.findings if f.check == "coverage"]
    assert [subject for subject, _ in told] == ["a_ctx.onnx", "b_ctx.onnx"]
    assert told[0][1] == told[1][1] and "no input set reaches 1 of its nodes" in told[0][1]
    assert {kind for kind, model, _ in runs.taken() if model == "b"} == {"run"}
