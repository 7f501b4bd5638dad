from pathlib import Path
from typing import Any

import msgspec
import pytest

from epctx import codec
from epctx.actions.run_source import RunSource, SourceResult
from epctx.engine.executor import one
from epctx.errors import CompileError, EpctxError, ModelError, StorageError
from epctx.machines import blobs
from epctx.machines.cluster import Lost, Member
from epctx.machines.executor import Remote
from epctx.machines.messages import Answer, Request, decoded, encoded
from epctx.machines.portable import Packing
from epctx.manifest import ModelSource, ProviderSpec, VerifyInputs
from tests.kit.members import member

JOB = RunSource(
    index=0,
    source=ModelSource(name="a", path=Path(__file__)),
    settings=VerifyInputs(),
    folder=Path("/nowhere"),
)
DONE = Answer(results=(msgspec.Raw(codec.encode(SourceResult(unfed="why"))),), peak_memory=7)


class FakeCluster:
    """Workers that answer, one call after the other, what they are to."""

    build = "b"
    is_lost = False

    def __init__(self, *answers: Answer | Lost) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, Request]] = []
        self.numbers = iter(range(1, 1000))

    def number(self) -> int:
        return next(self.numbers)

    def forget(self, number: int) -> None:
        pass

    def call(self, address: str, function: object, text: str, number: int) -> Any:
        self.requests.append((address, decoded(text, Request)))
        answer = self.answers.pop(0)

        class Said:
            stages = 0

            def wait(self, started: object) -> str:
                if isinstance(answer, Lost):
                    raise answer
                return encoded(answer)

            def cancel(self, reason: EpctxError) -> None:
                pass

        return Said()


def remote(folder: Path, *answers: Answer | Lost) -> tuple[Remote, FakeCluster]:
    cluster: Any = FakeCluster(*answers)
    members = [member(name) for name in "xyz"]

    def able(eps: object) -> list[Member]:
        return members

    shared = blobs.at(folder / "shared")
    return Remote(cluster, able, shared, Packing(shared), folder / "logs"), cluster


def places(cluster: FakeCluster) -> list[str]:
    return [address for address, _ in cluster.requests]


def test_lanes_go_to_who_has_least_to_do_and_stay_there(tmp_path: Path) -> None:
    executor, cluster = remote(tmp_path, *[DONE] * 4)
    with executor.lane(None) as first, executor.lane(None) as other:
        for lane in (first, other, first, other):
            assert one(lane, JOB).unfed == "why" and lane.peak_memory == 7
        assert (first.machine, other.machine) == ("x", "y")
    assert places(cluster) == ["tcp://x", "tcp://y", "tcp://x", "tcp://y"]


def test_a_job_whose_worker_is_lost_runs_elsewhere_and_not_for_ever(tmp_path: Path) -> None:
    executor, cluster = remote(tmp_path, Lost(), Lost(), DONE, Lost(), Lost(), Lost())
    with executor.lane(None) as lane:
        assert one(lane, JOB).unfed == "why" and lane.peak_memory == 7
        assert len(set(places(cluster))) == 3
        with pytest.raises(CompileError, match="3 workers were lost"):
            lane.run([JOB])


def test_what_fails_for_reasons_of_a_machine_is_tried_on_the_others(tmp_path: Path) -> None:
    full = StorageError("the disk is full", remedy="free some space").failure
    executor, cluster = remote(tmp_path, Answer(failure=full, own=True), DONE)
    with executor.lane(None) as lane:
        assert one(lane, JOB).unfed == "why" and lane.peak_memory == 7
    assert len(set(places(cluster))) == 2
    executor, cluster = remote(tmp_path, *[Answer(failure=full, own=True)] * 3)
    with pytest.raises(StorageError, match="the disk is full"), executor.lane(None) as lane:
        lane.run([JOB])
    assert len(places(cluster)) == 3


def test_an_error_is_of_its_class_and_names_paths_of_this_machine(tmp_path: Path) -> None:
    error = ModelError("is broken", file="/far/n1/0/a.onnx", remedy="see /far/log")
    (tmp_path / "log").write_text("the last words")
    log = blobs.at(tmp_path / "shared").put(tmp_path / "log")
    answer = Answer(
        failure=error.failure, roots=("/far/n1/0",), log_file="/far/log", log=log, lines=("words",)
    )
    executor, _ = remote(tmp_path, answer)
    with pytest.raises(ModelError) as told, executor.lane(None) as lane:
        lane.run([JOB])
    assert told.value.file == "/nowhere/a.onnx"
    kept = Path(told.value.remedy.removeprefix("see "))
    assert kept.parent == tmp_path / "logs" and kept.read_text() == "the last words"
    assert told.value.log is not None and told.value.log.lines == ("words",)


def test_a_worker_is_told_the_limits_of_a_job_and_whose_workers_may_take_it(
    tmp_path: Path,
) -> None:
    executor, cluster = remote(tmp_path, DONE, DONE, Answer())
    qnn = ProviderSpec(alias="htp", provider="QNNExecutionProvider")
    told: list[tuple[int, Any]] = []
    with executor.lane(None, [qnn]) as lane:
        lane.run([JOB], timeout=3, budget=5, memory=7, finished=lambda *each: told.append(each))
    with executor.lane("own", [qnn]) as lane:
        lane.run([JOB])
    shared, own, end = (request for _, request in cluster.requests)
    assert (shared.kind, shared.timeout, shared.budget) == ("QNNExecutionProvider", 3, 5)
    assert (own.label, own.kind, own.budget) == ("own", "", None)
    assert (own.lane, None) == (end.lane, end.job)
    assert told == [(0, SourceResult(unfed="why"))]


def test_a_job_that_its_budget_has_ended_has_less(tmp_path: Path) -> None:
    executor, _ = remote(tmp_path, DONE)
    with executor.lane(None) as lane:
        assert len(lane.run([JOB, JOB], budget=1)) == 1


def test_a_process_that_does_not_end_well_is_told(tmp_path: Path) -> None:
    crashed = CompileError("crashed on its way out", remedy="none").failure
    executor, _ = remote(tmp_path, DONE, Answer(failure=crashed))
    with pytest.raises(CompileError, match="on its way out"), executor.lane("v") as lane:
        lane.run([JOB])


def test_after_a_cancel_nothing_is_sent(tmp_path: Path) -> None:
    executor, cluster = remote(tmp_path)
    executor.cancel(EpctxError("stopped", remedy="none"))
    with pytest.raises(EpctxError, match="stopped"), executor.lane(None):
        pass
    executor, cluster = remote(tmp_path)
    with pytest.raises(EpctxError, match="lane"), executor.lane(None) as lane:
        lane.cancel(EpctxError("lane", remedy="none"))
        lane.run([JOB])
    assert cluster.requests == []
