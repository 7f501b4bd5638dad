from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial

import pytest

from epctx.engine.executor import Cancelled, Scheduler, WorkerLease
from epctx.errors import EpctxError, Interrupted, ModelError
from epctx.manifest import ProviderSpec


class Noting:
    """An executor without jobs, which notes what is asked of it: the scheduler's side is tested."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.cancelled = threading.Event()

    def lease(
        self, label: str | None, eps: Sequence[ProviderSpec] = ()
    ) -> AbstractContextManager[WorkerLease]:
        raise AssertionError("no job is carried out here")

    def cancel(self, reason: EpctxError) -> None:
        assert isinstance(reason, Cancelled)
        self.asked.append(f"cancel: {reason.what}")
        self.cancelled.set()

    def refuse_if_cancelled(self) -> None: ...

    def close(self) -> None:
        self.asked.append("close")


@pytest.fixture
def executor() -> Noting:
    return Noting()


def test_what_comes_after_is_called_once_all_are_done(executor: Noting) -> None:
    release = threading.Event()
    with Scheduler(executor, threads=3) as scheduler:
        futures = [scheduler.submit(release.wait, 30), scheduler.submit(bool, 1)]
        after = scheduler.submit_after(futures, lambda: [future.done() for future in futures])
        assert not after.done()
        release.set()
        assert scheduler.results([after]) == [[True, True]]


def test_what_comes_after_can_fail(executor: Noting) -> None:
    with Scheduler(executor) as scheduler:
        after: Future[int] = scheduler.submit_after([scheduler.submit(bool)], int, "x")
        with pytest.raises(ValueError, match="invalid literal"):
            scheduler.results([after])


def test_an_interrupt_cancels_what_runs_and_starts_nothing_more(executor: Noting) -> None:
    started: list[int] = []

    def job() -> None:
        executor.cancelled.wait(30)

    with (
        pytest.raises(Interrupted, match="nothing was published"),
        Scheduler(executor, interrupted="interrupted, nothing was published") as scheduler,
    ):
        running = scheduler.submit(job)
        waiting = scheduler.submit(started.append, 1)
        after = scheduler.submit_after([running], started.append, 2)
        raise KeyboardInterrupt
    assert executor.asked == ["cancel: interrupted", "close"]
    assert running.done() and waiting.cancelled() and not after.done()
    assert started == []


def test_an_error_cancels_what_runs_and_stays_what_it_is(executor: Noting) -> None:
    with pytest.raises(ValueError, match="mine"), Scheduler(executor) as scheduler:
        scheduler.submit(executor.cancelled.wait, 30)
        raise ValueError("mine")
    assert executor.asked == ["cancel: another job failed", "close"]


def meeting(number: int) -> list[Callable[[], int]]:
    """Tasks that are carried out at the same time, or not at all."""
    barrier = threading.Barrier(number)

    def task(index: int) -> int:
        barrier.wait(10)
        return index

    return [partial(task, index) for index in range(number)]


def test_tasks_go_to_the_threads_that_are_idle(executor: Noting) -> None:
    with Scheduler(executor, threads=3) as scheduler:
        together = scheduler.submit(scheduler.together, meeting(3))
        assert together.result(30) == [0, 1, 2]


def test_the_first_that_failed_is_raised_when_the_others_have_ended(executor: Noting) -> None:
    both, ended = threading.Barrier(2), threading.Event()

    def task(name: str) -> None:
        both.wait(10)
        assert name == "b" or ended.wait(10)
        ended.set()
        raise ModelError(f"{name} is broken", remedy="mend it")

    with Scheduler(executor, threads=2) as scheduler, pytest.raises(ModelError, match="a is"):
        scheduler.submit(scheduler.together, [partial(task, name) for name in "ab"]).result(30)


def test_what_failed_is_raised_before_what_was_ended(executor: Noting) -> None:
    both = threading.Barrier(2)

    def task(error: EpctxError) -> int:
        both.wait(10)
        raise error

    errors = [Cancelled("it was ended", remedy="none"), ModelError("is broken", remedy="none")]
    with Scheduler(executor, threads=2) as scheduler, pytest.raises(ModelError, match="is broken"):
        scheduler.submit(scheduler.together, [partial(task, each) for each in errors]).result(30)
