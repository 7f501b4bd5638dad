import threading
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from epctx import codec
from epctx.actions.optimize import Optimize, OptimizeResult
from epctx.errors import ProviderUnavailable
from epctx.keys.toolchain import Described
from epctx.machines import blobs
from epctx.machines.messages import Answer, Ep, Request, decoded, encoded
from epctx.machines.portable import Packing
from epctx.machines.site import Site
from epctx.manifest import ModelSource, OptimizeSettings, ProviderSpec
from tests.kit.building import mlp


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "site").mkdir()
    failure = ProviderUnavailable("has no device", remedy="buy one").failure
    eps = {"QNNExecutionProvider": Ep(state="no device", versions={}, failure=failure)}
    events: list[str] = []
    made = Site(
        tmp_path / "site", blobs.at(tmp_path / "shared"), lambda _, s: events.append(s), eps
    )
    attended = threading.Thread(target=made.attend, args=("b", "attend"), daemon=True)
    attended.start()
    yield made
    made.close()
    attended.join(timeout=20)
    assert not attended.is_alive() and list((tmp_path / "site").iterdir()) == []


def job(folder: Path) -> Optimize:
    onnx.save(mlp(seed=0, width=8), folder / "a.onnx")
    return Optimize.of(
        ModelSource(name="a", path=folder / "a.onnx"), OptimizeSettings(), folder / "new"
    )


def asked(packing: Packing, what: Optimize) -> str:
    job = packing.pack(what).portable
    request = Request(build="b", lane=1, label=None, kind="", number=1, job=job)
    return encoded(codec.decode(codec.encode(request), Request))


def test_a_job_is_carried_out_and_its_files_come_back(tmp_path: Path, site: Site) -> None:
    shared = blobs.at(tmp_path / "shared")
    packing = Packing(shared)
    what = job(tmp_path)
    answer = decoded(site.carry_out(asked(packing, what), "k"), Answer)
    assert answer.failure is None
    assert codec.decode(bytes(answer.results[0]), OptimizeResult).passes
    packing.receive(packing.pack(what), answer.made)
    names = sorted(path.name for path in what.folder.iterdir())
    assert names == ["graph.onnx", "places.json", "record.json"]


def test_what_fails_is_in_the_answer(tmp_path: Path, site: Site) -> None:
    what = job(tmp_path)
    what.source.path.write_bytes(b"no model")
    answer = decoded(
        site.carry_out(asked(Packing(blobs.at(tmp_path / "shared")), what), "k"), Answer
    )
    assert answer.failure is not None and answer.failure.exit_code == 4
    assert not answer.own and answer.roots


def test_a_content_that_is_not_there_is_this_machines_own_failure(
    tmp_path: Path, site: Site
) -> None:
    text = asked(Packing(blobs.at(tmp_path / "elsewhere")), job(tmp_path))
    answer = decoded(site.carry_out(text, "k"), Answer)
    assert answer.own and answer.failure is not None and answer.failure.kind == "StorageError"


def test_when_nobody_waits_any_more_all_of_the_build_ends(tmp_path: Path, site: Site) -> None:
    packing = Packing(blobs.at(tmp_path / "shared"))
    site.carry_out(asked(packing, job(tmp_path)), "k")
    assert list((tmp_path / "site").iterdir())
    site.cancel("attend")
    deadline = time.monotonic() + 20
    while list((tmp_path / "site").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    answer = decoded(site.carry_out(asked(packing, job(tmp_path)), "k"), Answer)
    assert answer.failure is not None and answer.failure.what == "the build has ended"


def test_an_ep_is_described_or_said_not_to_be_ready(tmp_path: Path, site: Site) -> None:
    packing = Packing(blobs.at(tmp_path / "shared"))
    ready = ProviderSpec(alias="a", provider="ReferenceExecutionProvider")
    answer = decoded(site.describe(encoded(packing.pack(ready).portable), "k"), Answer)
    assert codec.decode(bytes(answer.results[0]), Described).traits.isolated is False
    absent = ProviderSpec(alias="a", provider="QNNExecutionProvider")
    answer = decoded(site.describe(encoded(packing.pack(absent).portable), "k"), Answer)
    assert answer.failure is not None and answer.failure.what == "has no device"
