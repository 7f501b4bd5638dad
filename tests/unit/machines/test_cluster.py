import queue
from collections.abc import Callable
from typing import Any

import pytest

from epctx.actions.action import StageStarted
from epctx.errors import CompileError, EpctxError, ProviderUnavailable
from epctx.machines import cluster, local
from epctx.machines.blobs import new_nonce
from epctx.machines.cluster import Cluster, Lost, Task
from epctx.machines.messages import Began

pytestmark = pytest.mark.needs("module distributed", "the extra [dask]")
BEGAN = Began(nonce=new_nonce(), address="tcp://w", stage=StageStarted(stage="compile"))


class FakeFuture:
    """A future of dask, as far as tasks use it: its scheduler ends it by `end`."""

    status = "pending"
    error: Exception | None = None

    def add_done_callback(self, told: Callable[[Any], None]) -> None:
        self.told = told

    def done(self) -> bool:
        return self.status != "pending"

    def exception(self, timeout: float) -> Exception | None:
        return self.error

    def cancel(self, *, force: bool) -> None:
        self.status = "cancelled"

    def end(self, status: str, error: Exception | None = None) -> None:
        self.status, self.error = status, error
        self.told(self)


def task(*heard: object, here: Callable[[], bool] = lambda: True) -> tuple[Task, FakeFuture]:
    future: Any = FakeFuture()
    said: queue.SimpleQueue[object] = queue.SimpleQueue()
    for each in heard:
        said.put(each)
    return Task(future, here, said), future


def gone() -> bool:
    raise ProviderUnavailable("the scheduler is gone", remedy="none")


def test_a_task_tells_of_its_stages_until_it_has_ended() -> None:
    found, future = task(BEGAN)
    seen: list[Began] = []
    future.end("finished")
    found.wait(seen.append)
    assert seen == [BEGAN]


def test_a_task_whose_workers_are_gone_is_lost_and_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "_LOOK", 0.01)
    found, future = task(here=lambda: False)
    with pytest.raises(Lost):
        found.wait(lambda event: None)
    assert future.status == "cancelled"


def test_a_task_with_which_workers_died_is_lost_so_many_times() -> None:
    from distributed import KilledWorker

    found, future = task()
    worker: Any = "tcp://w"
    future.end("error", KilledWorker("t", worker, 3))
    with pytest.raises(Lost) as told:
        found.wait(lambda event: None)
    assert told.value.workers == 4


@pytest.mark.parametrize(("here", "raised"), [(lambda: True, Lost), (gone, ProviderUnavailable)])
def test_a_task_that_dask_lets_go_of_is_the_workers_or_the_schedulers_end(
    here: Callable[[], bool], raised: type[Exception]
) -> None:
    found, future = task(here=here)
    future.end("cancelled")
    with pytest.raises(raised):
        found.wait(lambda event: None)


def test_a_task_that_is_cancelled_raises_the_reason() -> None:
    found, future = task()
    found.cancel(EpctxError("stopped", remedy="none"))
    with pytest.raises(EpctxError, match="stopped"):
        found.wait(lambda event: None)
    assert future.status == "cancelled"


def test_what_a_worker_cannot_run_is_told() -> None:
    found, future = task()
    future.end("error", AttributeError("no such function"))
    with pytest.raises(CompileError, match="could not carry out a task") as told:
        found.wait(lambda event: None)
    assert told.value.why == "no such function"


def test_a_scheduler_that_is_gone_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lease looks who is there: else each would wait until it may be called gone."""
    with local.cluster(1) as (contact, tls, *_):
        found = Cluster(contact, tls)
        looks: list[None] = []

        def silent(*arguments: object, **rest: object) -> None:
            looks.append(None)
            raise TimeoutError

        monkeypatch.setattr(found._client, "sync", silent)
        for _ in range(3):
            with pytest.raises(ProviderUnavailable, match="the scheduler is gone"):
                found.workers()
        assert len(looks) == 1
        monkeypatch.undo()
        found.close()


def test_where_there_is_no_scheduler_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_REACHED", 0.5)
    with pytest.raises(ProviderUnavailable, match="there is no scheduler"):
        Cluster("tcp://127.0.0.1:1", None)
