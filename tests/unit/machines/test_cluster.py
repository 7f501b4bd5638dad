import queue
from concurrent import futures
from typing import Any

import pytest

from epctx.actions.action import StageStarted
from epctx.errors import CompileError, EpctxError, ProviderUnavailable
from epctx.machines.cluster import Call, Cluster, Lost

pytestmark = pytest.mark.needs("module distributed", "the extra [dask]")
PENDING = object()


class Asked:
    """A worker that was asked, and what becomes of that."""

    def __init__(self, answer: object, *heard: object, gone: Exception | None = None) -> None:
        self.future: futures.Future[object] = futures.Future()
        self.told: list[str] = []
        self.seen: list[StageStarted] = []
        self._gone = gone
        said: queue.SimpleQueue[object] = queue.SimpleQueue()
        for each in heard:
            said.put(each)
        if isinstance(answer, Exception):
            self.future.set_exception(answer)
        elif answer is not PENDING:
            self.future.set_result(answer)
        self.future.add_done_callback(lambda done: said.put(None))
        self.call = Call(self.future, said, lambda: self.told.append("end"), self._lost)

    def wait(self) -> Any:
        return self.call.wait(self.seen.append)

    def _lost(self) -> None:
        self.told.append("lost")
        if self._gone is not None:
            raise self._gone


def test_a_call_tells_of_stages_and_gives_its_answer() -> None:
    asked = Asked("answer", StageStarted(stage="compile"))
    assert asked.wait() == "answer"
    assert [each.stage for each in asked.seen] == ["compile"] and asked.told == []


def test_a_call_whose_worker_is_gone_is_lost_and_ended() -> None:
    asked = Asked(PENDING, Lost("tcp://w"))
    with pytest.raises(Lost):
        asked.wait()
    assert asked.future.cancelled() and asked.told == ["end"]


def test_a_connection_that_breaks_is_the_worker_or_the_scheduler() -> None:
    with pytest.raises(Lost):
        Asked(OSError("broken")).wait()
    gone = ProviderUnavailable("the scheduler is gone", remedy="none")
    asked = Asked(OSError("broken"), gone=gone)
    with pytest.raises(ProviderUnavailable):
        asked.wait()
    assert asked.told == ["lost"]


def test_a_call_that_is_cancelled_raises_the_reason() -> None:
    asked = Asked(PENDING)
    asked.call.cancel(EpctxError("stopped", remedy="none"))
    with pytest.raises(EpctxError, match="stopped"):
        asked.wait()
    assert asked.future.cancelled() and asked.told == ["end"]


@pytest.mark.parametrize("answer", [ValueError("no such module"), 7, None])
def test_what_is_no_answer_is_never_one(answer: object) -> None:
    with pytest.raises((CompileError, Lost)):
        Asked(answer).wait()


def test_where_there_is_no_scheduler_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epctx.machines.cluster._REACHED", 0.5)
    with pytest.raises(ProviderUnavailable, match="there is no scheduler"):
        Cluster("tcp://127.0.0.1:1", None)
