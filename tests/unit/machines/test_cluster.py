import queue
from typing import Any

import pytest

from epctx.errors import CompileError, EpctxError, ProviderUnavailable
from epctx.machines.cluster import Call, Cluster, Lost
from epctx.worker.jobs import StageStarted

pytestmark = pytest.mark.needs("module distributed", "the extra [dask]")


class Future:
    """As dask's, with a status that does not change."""

    def __init__(self, status: str, result: object = "answer") -> None:
        self.status = status
        self._result = result
        self.ended = ""

    def result(self, timeout: float) -> object:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def exception(self, timeout: float) -> Exception:
        return ValueError("no such module")

    def done(self) -> bool:
        return self.status != "pending"

    def release(self) -> None:
        self.ended = "released"

    def cancel(self) -> None:
        self.ended = "cancelled"


def waited(future: Future, *heard: object, doubts: list[str] | None = None) -> Any:
    told: queue.SimpleQueue[object] = queue.SimpleQueue()
    for each in heard:
        told.put(each)
    doubt = [] if doubts is None else doubts
    found: Any = future
    return Call(found, told, lambda: doubt.append("doubt")).wait()


def test_a_call_tells_of_stages_and_gives_its_answer() -> None:
    future, seen = Future("finished"), list[StageStarted]()
    heard: queue.SimpleQueue[object] = queue.SimpleQueue()
    heard.put(StageStarted(stage="compile"))
    heard.put(None)
    found: Any = future
    assert Call(found, heard, lambda: None).wait(seen.append) == "answer"
    assert [each.stage for each in seen] == ["compile"] and future.ended == "released"


def test_a_call_whose_worker_is_gone_is_lost_and_cancelled() -> None:
    future = Future("pending")
    with pytest.raises(Lost):
        waited(future, Lost("tcp://w"))
    assert future.ended == "cancelled"


def test_a_call_that_dask_gave_up_makes_doubt_the_scheduler() -> None:
    doubts: list[str] = []
    with pytest.raises(Lost):
        waited(Future("lost"), None, doubts=doubts)
    assert doubts


def test_an_answer_that_is_gone_with_its_worker_is_lost() -> None:
    future = Future("finished", TimeoutError())
    with pytest.raises(Lost, match="tcp://w"):
        waited(future, None, Lost("tcp://w"))


def test_a_call_that_is_cancelled_raises_the_reason() -> None:
    future = Future("pending")
    reason = EpctxError("stopped", remedy="none")
    with pytest.raises(EpctxError, match="stopped"):
        waited(future, reason)
    assert future.ended == "cancelled"


@pytest.mark.parametrize("future", [Future("error"), Future("finished", 7)])
def test_what_is_no_answer_is_never_one(future: Future) -> None:
    with pytest.raises((CompileError, Lost)):
        waited(future, None)


def test_where_there_is_no_scheduler_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epctx.machines.cluster._REACHED", 0.5)
    with pytest.raises(ProviderUnavailable, match="there is no scheduler"):
        Cluster("tcp://127.0.0.1:1", None)
