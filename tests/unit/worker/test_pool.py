"""Shared and own workers, admission by memory, and cancellation."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from epctx.actions.trial import Trial
from epctx.errors import CompileError, EpctxError
from epctx.inference.trial import RunJob
from epctx.manifest import ProviderSpec
from epctx.worker import pool
from epctx.worker.pool import Cancelling, MemoryBudget
from epctx.worker.process import Worker


class FakeWorker:
    """A mock: what counts here is which worker is handed out and how it is ended, not its work."""

    made: list[FakeWorker]

    def __init__(
        self, folder: Path, log: Path, place: int | None, *, variables: Mapping[str, str]
    ) -> None:
        self.place = place
        self.log = log
        self.variables = variables
        self.log.touch()
        self.ended: str | None = None
        self.expired = False
        self.peak_memory = 0
        self.dismissed = False
        self.reason = EpctxError("killed", remedy="none")
        self.made.append(self)

    @property
    def alive(self) -> bool:
        return self.ended is None

    @property
    def killed(self) -> bool:
        return self.ended == "killed"

    def dismiss(self) -> None:
        self.dismissed = True

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def kill(self, reason: EpctxError | None = None) -> None:
        self.ended = self.ended or "killed"


def faked(worker: Worker) -> FakeWorker:
    """What the pool takes for a worker."""
    assert isinstance(worker, FakeWorker)
    return worker


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pool.Pool:
    FakeWorker.made = []
    monkeypatch.setattr(pool, "Worker", FakeWorker)
    return pool.Pool(work=tmp_path / "work", logs=tmp_path / "logs")


def test_a_worker_that_is_ended_as_its_job_finishes_gets_no_other_job(workers: pool.Pool) -> None:
    """The next group would be told why the one before was cancelled."""
    with workers.shared() as first:
        first.kill(EpctxError("its compile failed", remedy="see its error"))
    with workers.shared() as second:
        assert second is not first


def test_a_shared_worker_gets_jobs_that_load_the_same_eps(workers: pool.Pool) -> None:
    qnn, reference = (
        ProviderSpec(alias="a", provider=f"{name}ExecutionProvider")
        for name in ("QNN", "Reference")
    )
    kinds = [pool.kind(eps) for eps in ((), (reference,), (qnn,), (reference, qnn))]
    assert kinds == ["", "", "QNNExecutionProvider", "QNNExecutionProvider"]
    for eps in ((), (qnn,), (reference,), (reference, qnn)):
        with workers.lease(None, eps) as lease, lease.worker():
            pass
    assert [worker.log.name for worker in FakeWorker.made] == [
        "worker-0.log",
        "qnnexecutionprovider-1.log",
    ]


def test_a_shared_worker_whose_eps_have_taken_much_memory_is_ended(workers: pool.Pool) -> None:
    for kind in ("", "QNNExecutionProvider"):
        with workers.shared(kind) as worker:
            faked(worker).peak_memory = 2 << 30
    assert [worker.ended for worker in FakeWorker.made] == [None, "closed"]


def test_the_end_of_a_shared_worker_is_no_groups_fault(
    workers: pool.Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def badly(worker: FakeWorker) -> None:
        raise CompileError("SIGABRT at its exit", remedy="none")

    monkeypatch.setattr(FakeWorker, "close", badly)
    with workers.shared("QNNExecutionProvider"):
        pass
    workers.close()
    assert [worker.ended for worker in FakeWorker.made] == ["killed"]
    assert not (tmp_path / "logs").exists()


def test_all_workers_are_ended_though_one_ends_badly_and_its_log_stays(
    workers: pool.Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def badly(worker: FakeWorker) -> None:
        if worker is FakeWorker.made[0]:
            raise CompileError("SIGABRT at its exit", remedy="none")
        worker.ended = "closed"

    monkeypatch.setattr(FakeWorker, "close", badly)
    with workers.shared() as first, workers.shared():
        first.log.write_text("its last words", encoding="utf-8")
    with pytest.raises(CompileError, match="SIGABRT"):
        workers.close()
    assert [worker.ended for worker in FakeWorker.made] == ["killed", "closed"]
    assert [path.name for path in (tmp_path / "logs").iterdir()] == [FakeWorker.made[0].log.name]


def test_an_isolated_worker_is_used_once(workers: pool.Pool) -> None:
    with workers.isolated("llm@x") as worker:
        assert faked(worker).ended is None
    assert faked(worker).ended == "closed"
    with workers.isolated("llm@x") as other:
        assert other is not worker


def test_a_lease_has_one_worker_for_all_its_jobs_and_its_exit_counts(workers: pool.Pool) -> None:
    with workers.lease("llm@x-main") as lease:
        assert not FakeWorker.made, "started before there is a job"
        with lease.worker() as first:
            pass
        with lease.worker() as second:
            assert second is first
        lease.dismiss()
        assert faked(first).dismissed
        assert faked(first).ended is None
        lease.close()
        assert faked(first).ended == "closed"
    assert len(FakeWorker.made) == 1


def test_a_lease_whose_job_fails_ends_its_worker_at_once(workers: pool.Pool) -> None:
    with pytest.raises(EpctxError), workers.lease("a") as lease, lease.worker() as worker:
        raise EpctxError("sick", remedy="none")
    assert faked(worker).ended == "killed"


def test_a_worker_that_ends_badly_fails_its_lease(
    workers: pool.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def badly(worker: FakeWorker) -> None:
        raise EpctxError("SIGABRT at its exit", remedy="none")

    monkeypatch.setattr(FakeWorker, "close", badly)
    with pytest.raises(EpctxError, match="SIGABRT"), workers.lease("a") as lease:
        with lease.worker():
            pass
        lease.close()


def test_a_lease_without_a_worker_of_its_own_takes_idle_ones(workers: pool.Pool) -> None:
    with workers.lease(None) as lease, lease.worker() as first:
        pass
    with workers.lease(None) as other, other.worker() as second:
        assert second is first
        other.dismiss()
    assert faked(first).ended is None
    assert not faked(first).dismissed


def test_after_a_cancel_no_worker_starts(workers: pool.Pool) -> None:
    reason = EpctxError("stop", remedy="none")
    with pytest.raises(EpctxError, match="stop"), workers.isolated("a"):
        workers.cancel(reason)
        assert FakeWorker.made[0].ended == "killed"
        workers.refuse_if_cancelled()
    with pytest.raises(EpctxError, match="stop"):
        workers.take("b")
    assert len(FakeWorker.made) == 1


def test_workers_that_compile_at_the_same_time_have_places_of_their_own(
    workers: pool.Pool,
) -> None:
    with workers.shared(), workers.lease("a") as a, a.worker(), workers.lease("b") as b:
        with b.worker():
            pass
        a.close()
        with workers.isolated("c"):
            pass
    assert [worker.place for worker in FakeWorker.made] == [None, 0, 1, 0]


def _cancel(lease: pool.WorkerLease, runs: threading.Event, reason: EpctxError) -> None:
    assert runs.wait(30)
    lease.cancel(reason)


def test_a_lease_whose_worker_died_gets_another(workers: pool.Pool) -> None:
    with workers.lease("llm@x-main") as lease:
        with pytest.raises(EpctxError), lease.worker() as first:
            first.kill()
            raise EpctxError("it crashed", remedy="none")
        with lease.worker() as second:
            assert second is not first
    assert faked(second).ended == "closed"


def test_a_lease_is_cancelled_from_another_thread(
    workers: pool.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that runs ends with the reason, and so does any that comes after."""
    runs, ended = threading.Event(), threading.Event()

    def run(worker: FakeWorker, *_: object, **__: object) -> None:
        runs.set()
        assert ended.wait(30)
        raise worker.reason

    def kill(worker: FakeWorker, reason: EpctxError | None = None) -> None:
        worker.reason = reason or worker.reason
        ended.set()

    monkeypatch.setattr(FakeWorker, "run", run, raising=False)
    monkeypatch.setattr(FakeWorker, "kill", kill)
    reason = EpctxError("the source does not run", remedy="none")
    for label in ("a", None):
        runs.clear()
        ended.clear()
        with pytest.raises(EpctxError, match="does not run"), workers.lease(label) as lease:
            canceller = threading.Thread(target=_cancel, args=(lease, runs, reason))
            canceller.start()
            job = Trial(job=RunJob(folder=Path(), model=Path()))
            with pytest.raises(EpctxError, match="does not run"):
                lease.run([job])
            canceller.join()
            lease.run([job])


def test_a_worker_that_was_ended_in_time_is_no_failure_and_gets_no_other_job(
    workers: pool.Pool,
) -> None:
    with workers.lease("own") as lease, lease.worker() as first:
        ended(first)
    assert faked(first).ended == "closed" and not first.log.exists()
    with workers.lease("own") as lease:
        with lease.worker() as second:
            ended(second)
        with lease.worker() as third:
            assert third is not second, "a job that follows gets another"
    with workers.shared() as shared:
        ended(shared)
    with workers.shared() as other:
        assert other is not shared


def ended(worker: Worker) -> None:
    """Its own bound came, as of `Worker.run`."""
    worker.expired = True


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_available", lambda: 100)


def test_what_fits_runs_at_once_and_what_does_not_waits(free: None) -> None:
    shared, entered = MemoryBudget(), threading.Event()

    def late() -> None:
        with shared.reserved(50):
            entered.set()

    with shared.reserved(60), shared.reserved(40):
        waiting = threading.Thread(target=late)
        waiting.start()
        assert not entered.wait(0.2)
    assert entered.wait(5)
    waiting.join()


def test_one_may_always_run(free: None) -> None:
    with MemoryBudget().reserved(1000):
        pass


def test_what_this_machine_cannot_hold_is_refused_with_a_size_that_fits(free: None) -> None:
    machine = psutil.virtual_memory().total + psutil.swap_memory().total
    with (
        pytest.raises(CompileError, match="is estimated to take") as told,
        MemoryBudget().reserved(2 * machine),
    ):
        pass
    assert told.value.code == "E0602"
    proposed = max(1, psutil.virtual_memory().total // 4 // 10**9)
    assert f"max_memory: {proposed}GB" in told.value.remedy


FIRST = CompileError("the first", remedy="none")


def test_what_runs_is_ended_and_what_is_to_come_is_refused() -> None:
    ended: list[tuple[str, EpctxError]] = []
    known = Cancelling[str](lambda each, reason: ended.append((each, reason)))
    with known.running(lambda: "over"):
        known.refuse()
    with known.running(lambda: "one"), known.running(lambda: "other"):
        known.cancel(FIRST)
        known.cancel(CompileError("the second", remedy="none"))
    assert ended == [("one", FIRST), ("other", FIRST)] * 2
    with pytest.raises(CompileError, match="the first"):
        known.refuse()
    begun: list[str] = []
    with pytest.raises(CompileError, match="the first"), known.running(lambda: begun.pop()):
        raise AssertionError("it was cancelled before")


def test_what_fails_to_begin_does_not_run() -> None:
    ended: list[object] = []
    known = Cancelling[object](lambda each, reason: ended.append(each))
    with pytest.raises(ZeroDivisionError), known.running(lambda: 1 / 0):
        raise AssertionError("it did not begin")
    known.cancel(FIRST)
    assert not ended and known.reason is FIRST
