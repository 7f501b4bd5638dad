"""Cluster: workers that come and go, tasks, and the EPs of the workers."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from epctx import codec
from epctx.actions.action import StageStarted
from epctx.errors import CompileError, EpctxError, ProviderUnavailable, StorageError
from epctx.keys.toolchain import Described, ProviderRecord, Traits
from epctx.machines import cluster, local, portable
from epctx.machines.cluster import Cluster, Decides, Lost, Member, Task, WorkersEps
from epctx.machines.messages import Answer, Began, encoded
from epctx.machines.portable import new_nonce
from epctx.manifest import ProviderSpec
from tests.kit.members import AMD, HERE, INTEL, member

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
            with pytest.raises(
                ProviderUnavailable, match="the connection to the scheduler is lost"
            ):
                found.workers()
        assert len(looks) == 1
        monkeypatch.undo()
        found.close()


def test_where_there_is_no_scheduler_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_REACHED", 0.5)
    with pytest.raises(ProviderUnavailable, match="there is no scheduler"):
        Cluster("tcp://127.0.0.1:1", None)


pytestmark = pytest.mark.needs("module distributed", "the extra [dask]")
Answers = Sequence[tuple[Member, Described | None]]
SPEC = ProviderSpec(alias="a", provider="P")


def ep(version: str, **host: str) -> Described:
    record = ProviderRecord(
        provider="P", options={}, code="c", toolchain={"sdk": version}, host=host
    )
    traits = Traits(name="P", sources=(), isolated=True, native=True)
    return Described(record=record, traits=traits, drivers={})


GONE, SILENT, FULL = ep("gone"), ep("silent"), ep("full")


class FakeCluster:
    """Workers that answer what they are to; one that is gone does not."""

    def __init__(self, answers: Answers) -> None:
        self.answers = {each.address: (each, answer) for each, answer in answers}
        self.asked: list[str] = []

    def members(self) -> list[Member]:
        return [each for each, _ in self.answers.values()]

    workers = members

    def ask(self, function: object, text: str, of: Sequence[Member]) -> dict[str, object]:
        self.asked += [each.address for each in of]
        return {each.address: self._answer(each.address) for each in of}

    def _answer(self, address: str) -> object:
        found = self.answers[address][1]
        if found is GONE:
            return OSError("gone")
        if found is SILENT:
            return TimeoutError()
        answer = Answer(address=address)
        if found is FULL:
            full = StorageError("its disk is full", remedy="free some space").failure
            return encoded(replace(answer, failure=full, own=True))
        if found is None:
            error = ProviderUnavailable("is not installed", remedy="install it")
            return encoded(replace(answer, failure=error.failure))
        return encoded(replace(answer, results=(msgspec.Raw(codec.encode(found)),)))


def made(
    folder: Path, answers: Answers, decides: Decides = lambda record: False
) -> tuple[WorkersEps, FakeCluster]:
    cluster: Any = FakeCluster(answers)
    return WorkersEps(cluster, portable.shared(folder.as_uri()), decides), cluster


def names(found: WorkersEps) -> list[str]:
    return [each.facts.name for each in found.able((SPEC,))]


def test_who_has_the_ep_takes_its_jobs_and_is_asked_once(tmp_path: Path) -> None:
    found, cluster = made(
        tmp_path, [(member("x"), ep("1")), (member("y"), None), (member("z"), ep("1"))]
    )
    assert names(found) == ["x", "z"] == names(found)
    assert found.described(SPEC) == ep("1") and found.cpu((SPEC,)) == INTEL
    assert len(cluster.asked) == 3


def test_where_nobody_has_it_each_says_what_is_missing(tmp_path: Path) -> None:
    found, _ = made(tmp_path, [(member("x"), None), (member("y"), None)])
    with pytest.raises(ProviderUnavailable, match="no worker can run P") as told:
        found.described(SPEC)
    assert told.value.why == "x: is not installed; y: is not installed"


def test_two_versions_are_an_error_unless_the_lock_says_which(tmp_path: Path) -> None:
    answers: Answers = [(member("x"), ep("1")), (member("y"), ep("2"))]
    with pytest.raises(ProviderUnavailable, match="differs between workers") as told:
        made(tmp_path, answers)[0].described(SPEC)
    assert told.value.where == "x and y" and told.value.why == "sdk: 1 and 2"
    found, _ = made(tmp_path, answers, lambda record: record.toolchain["sdk"] == "2")
    assert found.described(SPEC) == ep("2") and names(found) == ["y"]


def test_of_several_kinds_of_host_the_one_with_most_room_takes_it(tmp_path: Path) -> None:
    answers: Answers = [
        (member("x", INTEL), ep("1", cpu="Intel")),
        (member("y", AMD), ep("1", cpu="AMD")),
        (member("z", AMD, jobs=3), ep("1", cpu="AMD")),
    ]
    found, _ = made(tmp_path, answers)
    assert found.cpu((SPEC,)) == AMD and names(found) == ["y", "z"]


def test_another_epctx_is_no_worker_and_what_differs_is_told(tmp_path: Path) -> None:
    old = member("old")
    code = {action: {**known, "onnx": "1.0"} for action, known in HERE.items()}
    old = replace(old, facts=replace(old.facts, code=code))
    with pytest.raises(ProviderUnavailable, match="no worker has the same epctx") as told:
        made(tmp_path, [(old, ep("1"))])[0].described(SPEC)
    assert told.value.why == "old: onnx 1.0"
    found, _ = made(tmp_path, [(old, ep("2")), (member("new"), ep("1"))])
    assert names(found) == ["new"]


def test_a_worker_that_is_gone_takes_nothing_and_one_that_came_later_does(tmp_path: Path) -> None:
    found, cluster = made(tmp_path, [(member("x"), ep("1")), (member("y"), GONE)])
    assert names(found) == ["x"]
    cluster.answers["tcp://z"] = member("z"), ep("1")
    del cluster.answers["tcp://x"], cluster.answers["tcp://y"]
    assert names(found) == ["z"]
    cluster.answers["tcp://old"] = member("old"), ep("2")
    assert names(found) == ["z"]


def test_a_worker_that_fails_for_its_own_reasons_is_asked_again(tmp_path: Path) -> None:
    x, y = member("x"), member("y")
    found, cluster = made(tmp_path, [(x, FULL), (y, ep("1"))])
    assert names(found) == ["y"]
    cluster.answers[x.address] = x, ep("1")
    assert names(found) == ["x", "y"]


def test_a_worker_that_does_not_answer_takes_nothing(tmp_path: Path) -> None:
    found, cluster = made(tmp_path, [(member("x"), SILENT), (member("y"), ep("1"))])
    assert names(found) == ["y"] == names(found)
    assert cluster.asked == ["tcp://x", "tcp://y"]
    with pytest.raises(ProviderUnavailable, match="no worker can run P") as told:
        made(tmp_path, [(member("x"), SILENT)])[0].described(SPEC)
    assert told.value.why == "x: does not answer"
