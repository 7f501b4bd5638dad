"""Models of one session group optimized beside each other, in lanes that a test controls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from epctx.engine.actions import beside, checks
from epctx.engine.actions.beside import SideBySide
from epctx.engine.executor import Cancelled
from epctx.engine.plan import SessionGroup
from epctx.engine.scheduler import Scheduler
from epctx.errors import EpctxError, ModelError
from epctx.manifest import ModelSource

NAMES = ("a", "b", "c")
Work = Callable[[str, str], None]


class Lane:
    def __init__(self, name: str, own: bool = True) -> None:
        self.own = own
        self.name = name
        self.started = self.handed_on = False

    def start(self) -> None:
        self.started = True

    def hand_on(self) -> None:
        self.handed_on = True


class Group:
    """A group of three models; `work` hears the name of each that is optimized, and the lane."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.work: Work = lambda model, lane: None
        self.cached: tuple[str, ...] = ()
        self.runs = self.room = True
        self.expected = 0
        self.ran: list[tuple[str, str]] = []
        self.own = Lane("own")
        self.verifying = Lane("verifying")
        self.models = tuple(ModelSource(name=n, path=folder / f"{n}.onnx") for n in NAMES)
        monkeypatch.setattr(beside, "_START", 0.02)
        monkeypatch.setattr(checks, "expect", self._expect)
        monkeypatch.setattr(checks, "lane", lambda actions, progress: self._lane(self.verifying))

    def _expect(self, actions: object, progress: object) -> None:
        assert self.own.started, "the worker that is there is for the compile"
        self.expected += 1

    @contextmanager
    def _lane(self, lane: Lane) -> Iterator[Lane]:
        yield lane

    def _optimize(self, progress: object, source: ModelSource, lane: Lane, ahead: Any) -> str:
        if source.name not in self.cached:
            ahead()
            self.ran.append((source.name, lane.name))
            self.work(source.name, lane.name)
        return source.name

    def run(self, jobs: int = 2) -> tuple[object, ...]:
        actions: Any = SimpleNamespace(
            lookup=SimpleNamespace(runs=lambda group: self.runs),
            room=SimpleNamespace(has=lambda size: self.room),
            shared_lane=lambda: self._lane(Lane("shared")),
        )
        quantizing: Any = SimpleNamespace(model=self._optimize)
        progress: Any = SimpleNamespace(planned=SimpleNamespace(group=None))
        executor: Any = SimpleNamespace(cancel=lambda reason: None, close=lambda: None)
        session = SessionGroup(sharing="main", models=self.models)
        with Scheduler(executor, threads=jobs) as scheduler:
            side = SideBySide(actions, quantizing, scheduler, progress, session)
            lane: Any = self.own
            return scheduler.submit(side.run, lane).result()


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Group:
    return Group(monkeypatch, tmp_path)


def a_while(model: str, lane: str) -> None:
    threading.Event().wait(0.05)


def meeting(*names: str) -> Work:
    """Models that are optimized at the same time, or not at all."""
    all_of_them = threading.Barrier(len(names))

    def work(model: str, lane: str) -> None:
        if model in names:
            all_of_them.wait(10)

    return work


def test_what_takes_long_is_shared_with_the_worker_that_will_verify(group: Group) -> None:
    group.work = meeting("a", "b")
    assert group.run() == NAMES
    assert group.ran[:2] == [("a", "own"), ("b", "verifying")]
    assert group.expected == 1 and group.verifying.handed_on


def test_further_threads_and_groups_that_are_not_run_have_any_worker(group: Group) -> None:
    group.work = meeting(*NAMES)
    group.run(jobs=3)
    assert sorted(lane for _, lane in group.ran) == ["own", "shared", "verifying"]
    group.runs, group.expected = False, 0
    group.work = meeting(*NAMES)
    group.run(jobs=3)
    assert sorted(lane for _, lane in group.ran[3:]) == ["own", "shared", "shared"]
    assert not group.expected


def test_what_is_done_before_a_worker_could_start_is_left_to_the_one_that_is_there(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "_START", 60)
    assert group.run(jobs=3) == NAMES
    assert {lane for _, lane in group.ran} == {"own"}


def test_one_job_at_a_time_is_one(group: Group) -> None:
    group.work = a_while
    assert group.run(jobs=1) == NAMES
    assert {lane for _, lane in group.ran} == {"own"} and not group.expected


def test_where_memory_is_short_nobody_helps(group: Group) -> None:
    group.room = False
    group.work = a_while
    group.run()
    assert {lane for _, lane in group.ran} == {"own"}


def test_for_what_the_cache_has_no_worker_is_started(group: Group) -> None:
    group.cached = NAMES
    assert group.run() == NAMES
    assert not group.own.started and not group.expected


def test_the_first_model_that_failed_is_told_when_the_others_have_ended(group: Group) -> None:
    both, ended = threading.Barrier(2), threading.Event()

    def work(model: str, lane: str) -> None:
        both.wait(10)
        if model == "a":
            assert ended.wait(10)
        else:
            ended.set()
        raise ModelError(f"{model} is broken", remedy="mend it")

    group.work = work
    with pytest.raises(ModelError, match="a is broken"):
        group.run()
    assert len(group.ran) == 2, "no other is begun"


def test_what_failed_is_told_before_what_was_ended(group: Group) -> None:
    both = threading.Barrier(2)

    def work(model: str, lane: str) -> None:
        both.wait(10)
        error: type[EpctxError] = Cancelled if model == "a" else ModelError
        raise error(f"{model} is it", remedy="none")

    group.work = work
    with pytest.raises(ModelError, match="b is it"):
        group.run()
