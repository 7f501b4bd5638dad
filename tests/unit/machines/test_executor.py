from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from epctx import codec
from epctx.actions.action import StageStarted
from epctx.actions.run_models import RunSource, SourceResult
from epctx.engine.executor import one
from epctx.errors import (
    CompileError,
    EpctxError,
    ModelError,
    ProviderUnavailable,
    StorageError,
    UsageError,
)
from epctx.files.digest import Digest
from epctx.machines import executor, portable
from epctx.machines.address import Tls
from epctx.machines.cluster import Lost, Member
from epctx.machines.executor import Remote
from epctx.machines.messages import Answer, Began, Request, decoded, encoded
from epctx.machines.portable import Blobs
from epctx.manifest import ModelSource, ProviderSpec, VerifyInputs
from tests.kit.members import member

pytestmark = pytest.mark.needs("module distributed", "the extra [dask]")
JOB = RunSource(
    index=0,
    source=ModelSource(name="a", path=Path(__file__)),
    settings=VerifyInputs(),
    folder=Path("/nowhere"),
)
DONE = Answer(
    address="tcp://y",
    results=(msgspec.Raw(codec.encode(SourceResult(unfed="why"))),),
    peak_memory=7,
    stages=(StageStarted(stage="source"),),
)
FULL = Answer(address="", failure=StorageError("is full", remedy="none").failure, own=True)


class FakeCluster:
    """Workers that answer, one task after the other, what they are to."""

    def __init__(self, shared: Blobs, *answers: Answer | Lost) -> None:
        self.shared = shared
        self.answers = list(answers)
        self.asked: list[list[str]] = []
        self.requests: list[Request] = []

    def begin(self, function: object, text: str, nonce: Digest, of: Sequence[Member]) -> Any:
        self.requests.append(decoded(text, Request))
        self.asked.append([each.facts.name for each in of])
        answer = self.answers.pop(0)
        if isinstance(answer, Answer):
            found = answer if answer.address else replace(answer, address=of[0].address)
            self.shared.put_answer(nonce, encoded(found))

        class Said:
            def wait(self, began: Callable[[Began], None]) -> None:
                if isinstance(answer, Lost):
                    raise answer
                began(Began(nonce=nonce, address="tcp://x", stage=StageStarted(stage="load")))

            def cancel(self, reason: EpctxError) -> None:
                pass

        return Said()

    def forget(self, nonce: Digest) -> None:
        pass


def remote(folder: Path, *answers: Answer | Lost) -> tuple[Remote, FakeCluster]:
    shared = portable.shared((folder / "shared").as_uri())
    cluster: Any = FakeCluster(shared, *answers)
    members = [member(name) for name in "xyz"]
    return Remote(cluster, lambda eps: members, shared, folder / "logs"), cluster


def test_a_job_is_for_all_that_can_take_it_and_names_who_did(tmp_path: Path) -> None:
    made, cluster = remote(tmp_path, DONE)
    seen: list[tuple[str, str | None]] = []
    with made.lease(None) as lease:
        result = one(lease, JOB, started=lambda stage: seen.append((stage.stage, lease.machine)))
        assert result.unfed == "why" and lease.peak_memory == 7
    assert cluster.asked == [["x", "y", "z"]]
    assert seen == [("load", "x"), ("source", "y")], "the answer tells of what was not heard"
    assert lease.machine == "y"
    held = [path for path in (tmp_path / "shared").rglob("*") if path.is_file()]
    made.close()
    left = [path for path in (tmp_path / "shared").rglob("*") if path.is_file()]
    assert len(held) - len(left) == 1, "the answer is removed"


def test_a_job_whose_workers_are_lost_is_asked_for_again_and_not_for_ever(tmp_path: Path) -> None:
    made, cluster = remote(tmp_path, Lost(), Lost(), DONE, Lost(2), Lost(), Lost())
    with made.lease(None) as lease:
        assert one(lease, JOB).unfed == "why"
        with pytest.raises(CompileError, match="at least 4 workers were lost while they ran it"):
            lease.run([JOB])
    assert cluster.answers == [] and len({each.nonce for each in cluster.requests}) == 6


def test_a_worker_that_could_take_a_job_is_waited_for_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_RETURN", 0.05)
    monkeypatch.setattr(executor, "_LOOK", 0.01)
    shared = portable.shared((tmp_path / "shared").as_uri())
    cluster: Any = FakeCluster(shared, DONE)
    there: list[list[Member]] = [[], [], [member("y")]]
    made = Remote(cluster, lambda eps: there.pop(0) if there else [], shared, tmp_path / "logs")
    with made.lease(None) as lease:
        assert one(lease, JOB).unfed == "why"
        with pytest.raises(ProviderUnavailable, match="no worker is left") as told:
            lease.run([JOB])
    assert told.value.code == "E0504"


def test_what_fails_for_reasons_of_a_machine_is_tried_on_the_others(tmp_path: Path) -> None:
    made, cluster = remote(tmp_path, FULL, DONE)
    with made.lease(None) as lease:
        assert one(lease, JOB).unfed == "why"
    assert cluster.asked == [["x", "y", "z"], ["y", "z"]]
    made, cluster = remote(tmp_path, *[FULL] * 3)
    with pytest.raises(StorageError, match="is full"), made.lease(None) as lease:
        lease.run([JOB])
    assert cluster.asked == [["x", "y", "z"], ["y", "z"], ["z"]]


def test_an_error_is_of_its_class_and_its_log_is_here(tmp_path: Path) -> None:
    error = ModelError("is broken", file="/nowhere/a.onnx", remedy="see /far/log")
    (tmp_path / "log").write_text("the last words")
    made, cluster = remote(tmp_path)
    log = cluster.shared.put(tmp_path / "log")
    failed = replace(FULL, own=False, failure=error.failure, log_file="/far/log")
    cluster.answers = [replace(failed, log=log, lines=("words",))]
    with pytest.raises(ModelError) as told, made.lease(None) as lease:
        lease.run([JOB])
    assert told.value.file == "/nowhere/a.onnx"
    kept = Path(told.value.remedy.removeprefix("see "))
    assert kept.parent == tmp_path / "logs" and kept.read_text() == "the last words"
    assert told.value.log is not None and told.value.log.lines == ("words",)


def test_a_worker_is_told_the_limits_of_a_job_and_whose_process_may_take_it(
    tmp_path: Path,
) -> None:
    made, cluster = remote(tmp_path, DONE, DONE)
    qnn = ProviderSpec(alias="htp", provider="QNNExecutionProvider")
    told: list[tuple[int, Any]] = []
    with made.lease(None, [qnn]) as lease:
        lease.run([JOB], timeout=3, budget=5, memory=7, finished=lambda *each: told.append(each))
    with made.lease("own", [qnn]) as lease:
        lease.run([JOB])
    shared, own = cluster.requests
    assert (shared.label, shared.kind) == (None, "QNNExecutionProvider")
    assert (shared.timeout, shared.budget, shared.memory) == (3, 5, 7)
    assert (own.label, own.kind, own.budget) == ("own", "", None)
    assert told == [(0, SourceResult(unfed="why"))]


def test_a_job_that_its_budget_has_ended_has_less(tmp_path: Path) -> None:
    made, _ = remote(tmp_path, DONE)
    with made.lease(None) as lease:
        assert len(lease.run([JOB, JOB], budget=1)) == 1


def test_what_is_no_result_is_the_workers_fault(tmp_path: Path) -> None:
    wrong = msgspec.Raw(b'{"ran": 3}')
    for results, budget in (((wrong,), None), ((), None), (DONE.results * 2, 1.0)):
        made, _ = remote(tmp_path, replace(DONE, results=results))
        with (
            pytest.raises(CompileError, match="sent an invalid message") as told,
            made.lease(None) as lease,
        ):
            lease.run([JOB], budget=budget)
        assert told.value.where == "y"


def test_after_a_cancel_nothing_is_sent(tmp_path: Path) -> None:
    made, cluster = remote(tmp_path)
    made.cancel(EpctxError("stopped", remedy="none"))
    with pytest.raises(EpctxError, match="stopped"), made.lease(None):
        pass
    made, cluster = remote(tmp_path)
    with pytest.raises(EpctxError, match="lease"), made.lease(None) as lease:
        lease.cancel(EpctxError("lease", remedy="none"))
        lease.run([JOB])
    assert cluster.requests == []


def open_(url: str) -> None:
    with executor.opened(url, Tls(), lambda record: False, {}):
        pass


def test_a_remote_scheduler_without_a_shared_cache_is_refused_before_anything() -> None:
    with pytest.raises(UsageError, match="other machines need a shared cache"):
        open_("dask://127.0.0.1:1")


def test_what_names_no_machines_is_refused() -> None:
    with pytest.raises(UsageError, match="is not an address of machines"):
        open_("farm:1")


def test_a_cluster_of_this_machine_starts_when_there_is_something_to_do() -> None:
    with executor.opened("dask://local?workers=3", Tls(), lambda record: False) as found:
        assert found.eps is None and found.jobs is not None and found.jobs() >= 3
