"""Sources run beside a compile, in lanes that a test controls: who is ended, and who is blamed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from epctx.actions.numbers import RunSources, SourceResult
from epctx.engine.actions import checks, source
from epctx.engine.executor import Cancelled
from epctx.engine.plan import SessionGroup
from epctx.engine.progress import Events, GroupProgress
from epctx.engine.state import ModelState, SessionState
from epctx.errors import CompileError, EpctxError, Failure, ModelError, TimedOut
from epctx.manifest import ModelGroup, ModelSource, ProviderSpec

M = ModelSource(name="m", path=Path("m.onnx"))
GROUP = ModelGroup(
    name="g",
    models=(M,),
    execution_providers=(ProviderSpec(alias="htp", provider="QNNExecutionProvider"),),
)
BROKEN = ModelError("the source model does not run", model="m", remedy="correct it")


class Lane:
    """Runs `work`; what cancels it is what its job raises."""

    def __init__(self, work: Callable[[Lane], Any] = lambda lane: None, own: bool = True) -> None:
        self.own = own
        self.reason: EpctxError | None = None
        self.ended = threading.Event()
        self.did: list[str] = []
        self._work = work

    def start(self) -> None:
        self.did.append("start")

    peak_memory = 0

    def run(self, job: Sequence[object], **_: object) -> list[Any]:
        (action,) = job
        assert isinstance(action, RunSources) and action.folder == Path("kept")
        return [self._work(self)]

    def hand_on(self) -> None:
        self.did.append("hand on")

    def cancel(self, reason: EpctxError) -> None:
        self.reason = self.reason or reason
        self.ended.set()


def raising(error: Exception) -> Callable[[Lane], Any]:
    def work(lane: Lane) -> None:
        raise error

    return work


def until_cancelled(lane: Lane) -> None:
    assert lane.ended.wait(30)
    assert lane.reason is not None
    raise lane.reason


def ran(**unfed: str) -> Callable[[Lane], SourceResult]:
    return lambda lane: SourceResult(unfed=unfed)


@contextmanager
def beside(
    lane: Lane, compiling: Lane, monkeypatch: pytest.MonkeyPatch, *, numbers: bool = True
) -> Iterator[source.SourceRun | None]:
    @contextmanager
    def verifying(*_: object) -> Iterator[Lane]:
        yield lane

    monkeypatch.setattr(checks, "lane", verifying)
    monkeypatch.setattr(checks, "expect", lambda *_: lane.did.append("expect"))
    planned = SimpleNamespace(group=GROUP, label="g@default")
    actions = SimpleNamespace(lookup=SimpleNamespace(inputs=lambda group: numbers or None))
    progress = GroupProgress(cast(Any, planned), Events(lambda event: None))
    session = SessionGroup(sharing=None, models=(M,))
    known = SessionState(session=session, models=(ModelState(source=M),))
    with source.beside(
        cast(Any, actions), progress, known, Path("kept"), cast(Any, compiling)
    ) as run:
        yield run


def compiled(*unrun: EpctxError) -> tuple[Failure, ...]:
    return tuple(error.failure for error in unrun)


def test_a_source_that_fails_ends_the_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling = Lane()
    with beside(Lane(raising(BROKEN)), compiling, monkeypatch) as run:
        assert run is not None and compiling.ended.wait(30)
        assert compiling.reason is BROKEN
        with pytest.raises(ModelError):
            run.wait()


def test_a_compile_that_fails_ends_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane(until_cancelled)
    failed = CompileError("cannot", remedy="none")
    with pytest.raises(CompileError), beside(lane, Lane(), monkeypatch):
        raise failed
    assert isinstance(lane.reason, Cancelled) and "hand on" not in lane.did


def test_a_crash_is_the_sources_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No EP was in that process."""
    compiling = Lane()
    crash = CompileError("the worker process crashed, SIGSEGV", remedy="see the log")
    with beside(Lane(raising(crash)), compiling, monkeypatch) as run:
        assert run is not None
        with pytest.raises(ModelError, match="cannot run the source model: the worker process"):
            run.wait()
    late = TimedOut("no result within 3 s", remedy="raise `timeout`")
    with beside(Lane(raising(late)), compiling, monkeypatch) as run:
        assert run is not None
        with pytest.raises(TimedOut):
            run.wait()


def test_what_ends_for_the_lack_of_memory_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification runs the source again, when nothing is compiled beside it."""
    ended = CompileError("the worker process was ended: it had 9 GiB", remedy="none")
    ended.starved = True
    compiling = Lane()
    with beside(Lane(raising(ended)), compiling, monkeypatch) as run:
        assert run is not None and run.wait().unfed == {}
    assert compiling.reason is None


def test_the_worker_goes_on_to_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane(ran())
    with beside(lane, Lane(), monkeypatch) as run:
        assert run is not None and run.wait().unfed == {}
    assert lane.did == ["expect", "start", "hand on"]


def test_nothing_is_run_where_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    for compiling, numbers in ((Lane(), False), (Lane(own=False), True)):
        lane = Lane(raising(AssertionError("it is run")))
        with beside(lane, compiling, monkeypatch, numbers=numbers) as run:
            assert run is None
        assert lane.did == []


def test_the_ep_is_blamed_for_what_the_source_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    unrun = CompileError("QNN cannot run what it compiled", model="m", remedy="see the log")
    with beside(Lane(ran()), Lane(), monkeypatch) as run:
        source.judge(run, compiled())
        with pytest.raises(CompileError, match="QNN cannot run what it compiled"):
            source.judge(run, compiled(unrun))
    with beside(Lane(ran(m="it runs on zeros")), Lane(), monkeypatch) as run:
        source.judge(run, compiled(unrun))
    with beside(Lane(raising(BROKEN)), Lane(), monkeypatch) as run, pytest.raises(ModelError):
        source.judge(run, compiled(unrun))
    with pytest.raises(CompileError):
        source.judge(None, compiled(unrun))
