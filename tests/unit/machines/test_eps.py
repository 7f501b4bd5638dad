from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from epctx import codec
from epctx.errors import ProviderUnavailable, StorageError
from epctx.keys.records import ProviderRecord
from epctx.keys.toolchain import Described, Traits
from epctx.machines import blobs
from epctx.machines.cluster import Member
from epctx.machines.eps import Decides, WorkersEps
from epctx.machines.messages import Answer, encoded
from epctx.manifest import ProviderSpec
from tests.kit.members import AMD, HERE, INTEL, member

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
    return WorkersEps(cluster, blobs.shared(folder.as_uri()), decides), cluster


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
    with pytest.raises(ProviderUnavailable, match="no worker can take P") as told:
        found.described(SPEC)
    assert told.value.why == "x: is not installed; y: is not installed"


def test_two_versions_are_an_error_unless_the_lock_says_which(tmp_path: Path) -> None:
    answers: Answers = [(member("x"), ep("1")), (member("y"), ep("2"))]
    with pytest.raises(ProviderUnavailable, match="not the same on all workers") as told:
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
    with pytest.raises(ProviderUnavailable, match="no worker has this epctx") as told:
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
    with pytest.raises(ProviderUnavailable, match="no worker can take P") as told:
        made(tmp_path, [(member("x"), SILENT)])[0].described(SPEC)
    assert told.value.why == "x: does not answer"
