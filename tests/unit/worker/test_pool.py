from pathlib import Path

import pytest

from epctx.errors import EpctxError
from epctx.worker import pool


class FakeWorker:
    """A mock: what counts here is which worker is handed out and how it is ended, not its work."""

    made: list["FakeWorker"]

    def __init__(self, folder: Path, log: Path) -> None:
        self.log = log
        self.log.touch()
        self.ended: str | None = None
        self.made.append(self)

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def kill(self, reason: EpctxError | None = None) -> None:
        self.ended = self.ended or "killed"


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pool.Pool:
    FakeWorker.made = []
    monkeypatch.setattr(pool, "Worker", FakeWorker)
    return pool.Pool(work=tmp_path / "work", logs=tmp_path / "logs")


def test_a_shared_worker_is_used_again_until_it_fails(workers: pool.Pool) -> None:
    with workers.shared() as first:
        pass
    with workers.shared() as second:
        assert second is first
    with pytest.raises(EpctxError), workers.shared():
        raise EpctxError("sick", remedy="none")
    with workers.shared() as third:
        assert third is not first


def test_an_isolated_worker_is_expected_once_and_used_once(workers: pool.Pool) -> None:
    workers.expect("llm@x")
    workers.expect("llm@x")
    assert len(FakeWorker.made) == 1
    with workers.isolated("llm@x-main") as worker:
        assert worker is FakeWorker.made[0]
    assert worker.ended == "closed"
    with workers.isolated("llm@x-other") as other:
        assert other is not worker


def test_a_worker_that_nobody_needed_is_ended(workers: pool.Pool, tmp_path: Path) -> None:
    workers.expect("llm@x")
    workers.end()
    assert [worker.ended for worker in FakeWorker.made] == ["closed"]
    assert not (tmp_path / "logs").exists()


def test_after_an_end_with_a_reason_no_worker_starts(workers: pool.Pool) -> None:
    reason = EpctxError("stop", remedy="none")
    with pytest.raises(EpctxError, match="stop"), workers.isolated("a"):
        workers.end(reason)
        assert FakeWorker.made[0].ended == "killed"
        workers.refuse_if_ended()
    with pytest.raises(EpctxError, match="stop"):
        workers.expect("b")
    assert len(FakeWorker.made) == 1
