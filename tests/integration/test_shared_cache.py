"""Two machines that share nothing but a store: what one has built, the other takes."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from epctx import api
from epctx.commands.plan import PlanReport
from epctx.engine.events import Event
from epctx.engine.report import ActionReport, BuildReport
from tests.kit import projects, stores
from tests.kit import real_models as models
from tests.kit.command_line import VARYING, epctx, forget_eps
from tests.kit.projects import Project
from tests.kit.vouching import key_pair

QNN = {
    "execution_providers": {
        "ref": {"provider": "QNNExecutionProvider", "options": {"soc_model": "60"}}
    }
}
KINDS = [
    pytest.param("reference", id="reference"),
    pytest.param("qnn", marks=pytest.mark.needs("module onnxruntime_qnn"), id="qnn"),
    pytest.param("quantized", id="quantized"),
]


class Machine:
    """A cache, a home and a copy of the project of its own; what it signs with, whom it trusts."""

    def __init__(self, folder: Path, sources: Path, **environment: str) -> None:
        self.folder = folder
        project = folder / "home" / "project"
        shutil.copytree(sources, project)
        self.project = Project(folder=project, document={})
        self.environment = {
            "EPCTX_CACHE_DIR": str(folder / "cache"),
            "HOME": str(folder / "home"),
            **environment,
        }

    def build(self, **options: Any) -> BuildReport:
        with self._own():
            return api.build(
                self.project.manifest,
                out=self.project.folder / "dist",
                **{"listener": self.project.events.append, **options},
            )

    def plan(self) -> PlanReport:
        with self._own():
            return api.plan(self.project.manifest, out=self.project.folder / "dist")

    def _own(self) -> Any:
        patch = pytest.MonkeyPatch()
        for name, value in self.environment.items():
            patch.setenv(name, value)
        return _undone(patch)


class _undone:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __enter__(self) -> None:
        """It is as it was set."""

    def __exit__(self, *raised: object) -> None:
        self._patch.undo()


class Two:
    """The first machine has built and pushed."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.store = folder / "store"
        private, self.line = key_pair(folder, "ci-1")
        self.sources = _project(folder / "sources", kind)
        self.shared = {"EPCTX_REMOTE_CACHE": self.store.as_uri(), "EPCTX_CACHE_TRUST": self.line}
        self.first = Machine(
            folder / "first", self.sources, EPCTX_CACHE_SIGNING_KEY=str(private), **self.shared
        )
        self.report = self.first.build()

    def machine(self, name: str, **environment: str) -> Machine:
        return Machine(self.folder / name, self.sources, **(self.shared | environment))


def _project(folder: Path, kind: str) -> Path:
    project = projects.make(folder, {"g": ["a", "b"]}, verify={"inputs": {"count": 1}})
    if kind == "qnn":
        for name in "ab":
            onnx.save(models.mlp(batch=1 if name == "a" else 4, width=64), folder / f"{name}.onnx")
        project.document.update(QNN)
    if kind == "quantized":
        (entry,) = onnx.load(folder / "a.onnx", load_external_data=False).graph.input
        shape = [dimension.dim_value for dimension in entry.type.tensor_type.shape.dim]
        sample = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        np.savez(folder / "sample.npz", allow_pickle=False, **{entry.name: sample})
        files = {"files": ["sample.npz"]}
        project.section("defaults").update(
            quantize={"calibration": files}, verify={"inputs": files}
        )
    project.write()
    return folder


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    with stores.installed():
        yield


@pytest.fixture(scope="module", params=KINDS)
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Two:
    return Two(tmp_path_factory.mktemp("two"), request.param)


def actions(report: BuildReport) -> list[ActionReport]:
    return [action for group in report.groups for action in group.actions]


def test_the_first_has_pushed_what_it_built(two: Two) -> None:
    assert all(action.ran for action in actions(two.report))
    assert two.report.remote is not None
    assert two.report.remote.pushed >= 4
    assert two.report.remote.not_pushed == 0
    assert two.report.remote.refused == {}


def test_the_second_builds_nothing_and_has_the_same(two: Two) -> None:
    second = two.machine("second")
    report = second.build()
    assert [group.state for group in report.groups] == ["built"]
    assert {a.ran for a in actions(report)} == {False}
    assert {a.signer for a in actions(report)} == {"ci-1"}
    assert {a.came_from for a in actions(report)} == {two.store.as_uri()}
    assert second.project.notices() == []
    assert second.project.files() == two.first.project.files()
    assert second.project.lock.read_bytes() == two.first.project.lock.read_bytes()


def test_the_second_fetches_what_it_needs_and_no_more(two: Two) -> None:
    second = two.machine("frugal")
    plan = second.plan()
    (planned,) = plan.groups
    assert planned.state == "publishes"
    report = second.build()
    assert report.remote is not None
    assert report.remote.fetched == planned.fetches
    published = sum(file.size for group in report.groups for file in group.files)
    there = sum(path.stat().st_size for path in (two.store / "v1" / "objects").iterdir())
    assert published <= report.remote.fetched < there


def test_nothing_to_do_asks_nothing(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    second = two.machine("idle")
    second.build()

    def asked(url: str) -> stores.FolderStore:
        raise AssertionError(url)

    monkeypatch.setattr("epctx.cache.remote.tier.open_store", asked)
    report = second.build()
    assert [group.state for group in report.groups] == ["up to date"]
    assert report.remote is None


def test_the_report_says_where_everything_is_from(two: Two) -> None:
    second = two.machine("told")
    second.build()
    written = json.loads((second.project.folder / "dist" / "m.build.json").read_bytes())
    told = written["groups"][0]["actions"][0]
    assert (told["ran"], told["from"], told["signer"]) == (False, two.store.as_uri(), "ci-1")
    assert written["remote"]["fetched"] > 0


def _built(machine: Machine, two: Two) -> BuildReport:
    """A release of the first machine's lock."""
    for path in (two.first.project.lock, *two.first.project.folder.glob("*.ranges.json")):
        shutil.copy(path, machine.project.folder)
    return machine.build(locked=True, attest=True, builder_id="https://ci.example.com/x")


def _signers(machine: Machine) -> dict[str, list[str]]:
    attested = json.loads((machine.project.folder / "dist" / "m.intoto.json").read_bytes())
    definition = attested["predicate"]["buildDefinition"]
    found: dict[str, list[str]] = definition["internalParameters"].get("actions", {})
    return found


def test_a_release_says_who_signed_what_it_took(two: Two) -> None:
    machine = two.machine("release")
    report = _built(machine, two)
    taken = {action.key for action in actions(report)}
    assert {action.ran for action in actions(report)} == {False}
    assert _signers(machine).keys() == {"ci-1"}
    assert taken <= set(_signers(machine)["ci-1"])


def test_a_release_takes_nothing_that_is_not_signed(two: Two) -> None:
    machine = two.machine("alone", EPCTX_REMOTE_CACHE="", EPCTX_CACHE_TRUST="")
    machine.build()
    shutil.rmtree(machine.project.folder / "dist")
    report = _built(machine, two)
    assert {action.ran for action in actions(report)} == {True}
    assert _signers(machine) == {}
    assert any("results without a trusted signature" in each for each in machine.project.notices())


def test_many_groups_are_asked_for_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "sources"
    projects.make(sources, {f"g{number}": [f"m{number}"] for number in range(6)})
    now, most, guard = 0, 0, threading.Lock()

    def count(name: str) -> None:
        nonlocal now, most
        with guard:
            now, most = now + 1, max(most, now + 1)
        time.sleep(0.1)
        with guard:
            now -= 1

    store = stores.FaultyStore(tmp_path / "store", faults={"read": count})
    monkeypatch.setattr("epctx.cache.remote.tier.open_store", lambda url: store)
    line = key_pair(tmp_path, "ci-1")[1]
    asking = Machine(
        tmp_path / "asking", sources, EPCTX_REMOTE_CACHE="file:///x", EPCTX_CACHE_TRUST=line
    )
    report = asking.build(jobs=1)
    assert {action.ran for action in actions(report)} == {True}
    assert most >= 4


def test_with_a_poisoned_store_the_second_builds_the_same(two: Two) -> None:
    spoilt = two.folder / "spoilt"
    shutil.copytree(two.store, spoilt)
    for path in (spoilt / "v1" / "objects").iterdir():
        path.write_bytes(b"x" * path.stat().st_size)
    second = two.machine("poisoned", EPCTX_REMOTE_CACHE=spoilt.as_uri())
    second.build()
    assert second.project.files() == two.first.project.files()
    assert len(second.project.notices()) == 1


def test_two_machines_that_compile_the_same_to_other_bytes_are_told_by_whose_ep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, line = key_pair(tmp_path, "ci-1")
    sources = projects.make(tmp_path / "sources", {"g": ["a"]}, verify={"inputs": {"count": 1}})
    chance = {"provider": "VaryingExecutionProvider", "options": {"depends": "chance"}}
    sources.section("execution_providers")["ref"] = chance
    sources.write()
    environment = {
        "EPCTX_REMOTE_CACHE": (tmp_path / "store").as_uri(),
        "EPCTX_CACHE_TRUST": line,
        "EPCTX_CACHE_SIGNING_KEY": str(private),
        "PYTHONPATH": str(VARYING),
    }
    one, other = (Machine(tmp_path / name, sources.folder, **environment) for name in "ab")
    monkeypatch.syspath_prepend(VARYING)
    forget_eps()
    done: list[int] = []

    def meanwhile(event: Event) -> None:
        one.project.events.append(event)
        if event.stage == "compile" and not done:
            run = epctx("build", "m.yaml", cwd=other.project.folder, **other.environment)
            done.append(run.returncode)

    report = one.build(listener=meanwhile)
    forget_eps()
    assert done == [0] and report.remote is not None and report.remote.not_pushed == 1
    told = " ".join(one.project.notices())
    assert "VaryingExecutionProvider does not write the same bytes each time: ci-1" in told
