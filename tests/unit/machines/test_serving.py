import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from epctx import codec
from epctx._version import __version__
from epctx.actions.optimize import Optimize, OptimizeResult
from epctx.errors import ProviderUnavailable
from epctx.keys.toolchain import Described
from epctx.machines import portable, serving
from epctx.machines.messages import Answer, Facts, Question, Request, decoded, encoded
from epctx.machines.portable import Blobs, new_nonce
from epctx.machines.serving import WorkerService
from epctx.manifest import ModelSource, OptimizeSettings, ProviderSpec
from epctx.worker import protocol
from tests.kit.building import mlp

pytestmark = pytest.mark.needs("module distributed", "the extra [dask]")


@pytest.fixture
def shared(tmp_path: Path) -> Blobs:
    return portable.shared((tmp_path / "shared").as_uri())


@pytest.fixture
def site(tmp_path: Path, shared: Blobs, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerService]:
    failure = ProviderUnavailable("has no device", remedy="buy one").failure
    monkeypatch.setattr(serving, "_REST", 0.1)
    made = WorkerService(
        tmp_path / "site", shared, {"Absent": failure}, "tcp://w", lambda topic, text: None
    )
    yield made
    made.close()
    assert not (tmp_path / "site").exists(), "nothing is left"


def job(folder: Path) -> Optimize:
    onnx.save(mlp(seed=0, width=8), folder / "a.onnx")
    return Optimize.of(
        ModelSource(name="a", path=folder / "a.onnx"), OptimizeSettings(), folder / "new"
    )


def asked(shared: Blobs, what: Optimize) -> Request:
    return Request(
        nonce=new_nonce(),
        label=None,
        kind="",
        job=protocol.encode([what]),
        files=portable.pack(shared, [what]),
    )


def answered(site: WorkerService, shared: Blobs, request: Request, key: str = "k") -> Answer:
    site.carry_out(encoded(request), key)
    return decoded(shared.get_answer(request.nonce), Answer)


def test_a_job_is_carried_out_and_its_files_come_back(
    tmp_path: Path, site: WorkerService, shared: Blobs
) -> None:
    what = job(tmp_path)
    request = asked(shared, what)
    answer = answered(site, shared, request)
    assert answer.failure is None and answer.address == "tcp://w"
    assert codec.decode(bytes(answer.results[0]), OptimizeResult).passes
    assert [stage.stage for stage in answer.stages] == ["load", "optimize"]
    portable.receive(shared, request.files, answer.made, failed=False)
    names = sorted(path.name for path in what.folder.iterdir())
    assert names == ["graph.onnx", "places.json", "record.json"]


def test_what_fails_is_in_the_answer_and_names_paths_of_who_has_asked(
    tmp_path: Path, site: WorkerService, shared: Blobs
) -> None:
    what = job(tmp_path)
    what.source.path.write_bytes(b"no model")
    answer = answered(site, shared, asked(shared, what))
    assert answer.failure is not None and answer.failure.exit_code == 4
    assert answer.failure.file == str(what.source.path) and not answer.own


def test_a_content_that_is_not_there_is_this_machines_own_failure(
    tmp_path: Path, site: WorkerService, shared: Blobs
) -> None:
    request = asked(portable.shared((tmp_path / "elsewhere").as_uri()), job(tmp_path))
    answer = answered(site, shared, request)
    assert answer.own and answer.failure is not None and answer.failure.kind == "StorageError"


def test_an_answer_that_cannot_be_put_there_is_told_to_dask(
    tmp_path: Path, site: WorkerService, shared: Blobs
) -> None:
    request = asked(shared, job(tmp_path))
    (tmp_path / "shared" / "v1" / "objects").rename(tmp_path / "away")
    (tmp_path / "shared" / "v1" / "objects").write_bytes(b"no folder")
    with pytest.raises(RuntimeError, match="the system says: Not a directory"):
        site.carry_out(encoded(request), "k")


def test_what_nobody_waits_for_ends_also_if_it_has_not_begun(
    tmp_path: Path, site: WorkerService, shared: Blobs
) -> None:
    site.cancel("k")
    answer = answered(site, shared, asked(shared, job(tmp_path)))
    assert answer.failure is not None and answer.failure.what == "the build has ended"
    assert answered(site, shared, asked(shared, job(tmp_path)), "other").failure is None


def test_processes_that_rest_end_and_are_started_again(
    tmp_path: Path, site: WorkerService, shared: Blobs
) -> None:
    for _ in range(2):
        assert answered(site, shared, asked(shared, job(tmp_path))).failure is None
        deadline = time.monotonic() + 300
        while site._pool._alive and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not site._pool._alive
        site._rested.join()
        assert not list((tmp_path / "site").iterdir())


def test_an_ep_is_described_or_said_not_to_be_ready(
    tmp_path: Path, site: WorkerService, shared: Blobs
) -> None:
    def described(provider: str) -> Answer:
        eps = (ProviderSpec(alias="a", provider=provider),)
        question = Question(eps=eps, files=portable.pack(shared, eps))
        return decoded(site.describe(encoded(question)), Answer)

    (found,) = described("ReferenceExecutionProvider").results
    assert codec.decode(bytes(found), Described).traits.isolated is False
    failure = described("Absent").failure
    assert failure is not None and failure.what == "has no device"


def test_a_worker_says_what_it_is() -> None:
    found = serving.facts(name="farm", jobs=3)
    assert (found.name, found.epctx, found.jobs) == ("farm", __version__, 3)
    assert found.code["compile"]["epctx"].startswith("blake3:")
    assert decoded(encoded(found), Facts) == found


def test_without_a_scheduler_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_REACHED", 1)
    with pytest.raises(ProviderUnavailable, match="there is no scheduler"):
        serving.serve("tcp://127.0.0.1:1", None, tmp_path.as_uri(), name="w")
