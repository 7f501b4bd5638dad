"""A lock of two kinds of host, and all that reads it.

The one real EP whose bytes depend on the CPU has devices on Intel's only, and no test changes its
CPU: a mock, the reference EP with a host fact that a file tells, is built with as if on two hosts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jsonschema
import pytest
import yaml

from epctx import api, lockfile
from epctx.errors import LockError
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock
from epctx.parsing.schema import providers
from epctx.verification.findings import VerifyReport
from tests.kit import projects
from tests.kit.command_line import VARYING, forget_eps
from tests.kit.compositions import PARTS
from tests.kit.compositions import project as composed
from tests.kit.inline import Inline
from tests.kit.projects import Project

pytestmark = pytest.mark.usefixtures("jobs_inline")

BUILDER = "https://ci.example.com/release"
FACT = "VaryingExecutionProvider: isa"


class Hosts(NamedTuple):
    """One project, built on two kinds of host: its lock after each build, what each released."""

    project: Project
    first: bytes
    both: bytes
    notices: list[str]


def become(patch: pytest.MonkeyPatch, folder: Path, isa: str) -> None:
    """As if this host had another instruction set."""
    place = folder / f"host-{isa}"
    place.mkdir(exist_ok=True)
    (place / "isa").write_text(isa, encoding="utf-8")
    patch.syspath_prepend(place)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Without worker processes; of two groups and their composition one group does not vary."""
    folder = tmp_path_factory.mktemp("hosts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("epctx.worker.pool.Worker", Inline)
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
        patch.syspath_prepend(VARYING)
        forget_eps()
        projects.steady(patch)
        project = composed(folder / "p", {"whole": {"parts": PARTS}})
        cpu = {"provider": "VaryingExecutionProvider", "options": {"depends": "cpu"}}
        project.section("execution_providers")["one"] = cpu
        locks: list[bytes] = []
        for isa in ("avx2", "avx512"):
            become(patch, folder, isa)
            project.build(golden=True, archive=True, attest=True, builder_id=BUILDER)
            api.package(project.manifest, out=project.folder / "dist")
            (project.folder / "dist").rename(project.folder / isa)
            locks.append(project.lock.read_bytes())
        first, both = locks
        yield Hosts(project, first, both, project.notices())
    forget_eps()


@pytest.fixture
def project(made: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A copy of the project, on a host of the second kind, with what was released on both."""
    monkeypatch.setattr("epctx.worker.pool.Worker", Inline)
    monkeypatch.syspath_prepend(VARYING)
    projects.steady(monkeypatch)
    become(monkeypatch, tmp_path, "avx512")
    shutil.copytree(made.project.folder, tmp_path / "p")
    return Project(folder=tmp_path / "p", document=json.loads(json.dumps(made.project.document)))


def isas(lock: Lock) -> set[str]:
    return {facts["isa"] for kind in hosts.kinds(lock) for facts in kind.values()}


def test_a_second_kind_of_host_is_added(made: Hosts) -> None:
    first, both = (lockfile.parse(text, where="l") for text in (made.first, made.both))
    assert (first.lock_version, isas(first), first.hosts) == (1, {"avx2"}, {})
    assert (both.lock_version, isas(both)) == (2, {"avx2", "avx512"})
    assert hosts.on(both, hosts.kind(first)) == first, "the first one's is as it was"
    one, other = hosts.views(both)
    differing = {name for name in one.folders if one.folders[name] != other.folders[name]}
    assert differing == {"default/ends", "default/whole"}
    assert both.folders["default/middle"] == one.folders["default/middle"]
    assert "the lock has an entry for this kind of host now, in addition to 1" in made.notices
    jsonschema.validate(yaml.safe_load(made.both), json.loads(providers.read_schema("lock")))


def refusal(project: Project, **options: object) -> str:
    before = project.lock.read_bytes()
    with pytest.raises(LockError) as caught:
        project.build(locked=True, **options)
    assert project.lock.read_bytes() == before, "it is never added to"
    return f"{caught.value.code.value}: {caught.value}"


def test_both_kinds_are_held_to_it_and_a_third_one_is_not(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = project.lock.read_bytes()
    for isa in ("avx512", "avx2"):
        become(monkeypatch, tmp_path, isa)
        project.build(locked=True)
        held = {path.name: path.read_bytes() for path in (project.published / "ends").iterdir()}
        there = (project.folder / isa / "m" / "default" / "ends").iterdir()
        assert held == {path.name: path.read_bytes() for path in there if path.is_file()}
    become(monkeypatch, tmp_path, "amx")
    told = refusal(project)
    assert told.startswith("E0804: m.lock.yaml: has no entry for this kind of host")
    assert f"this host: {FACT}: amx" in told and f"the lock has: {FACT}: avx2" in told
    assert "`epctx build` here" in told
    assert [group.state for group in project.build(locked=True, only=["middle"]).groups]
    assert project.lock.read_bytes() == text


def test_a_setting_of_what_no_host_changes_takes_all_others_away(project: Project) -> None:
    project.section("model_groups", "middle")["optimize"] = {"level": "none"}
    assert "optimize" in refusal(project)
    project.build()
    assert isas(lockfile.read(project.lock)) == {"avx512"}
    (told,) = (each for each in project.notices() if "lock" in each)
    assert "for 1 other kinds of host" in told


def test_a_build_that_gives_the_same_leaves_the_lock(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = projects.stats(project.folder)["m.lock.yaml"]
    for isa in ("avx512", "avx2", "avx2"):
        become(monkeypatch, tmp_path, isa)
        project.build()
        assert projects.stats(project.folder)["m.lock.yaml"] == before
    assert not project.notices()


def failed(report: VerifyReport) -> list[str]:
    """Integrity against the lock or the sums: what failed, or cannot be checked."""
    return [
        f"{folder.folder}: {finding.subject}: {finding.message}"
        for folder in report.folders
        for finding in folder.findings
        if finding.policy == "integrity" and finding.outcome in ("fail", "not checkable")
    ]


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_releases_of_both_kinds_follow_from_it(project: Project, isa: str) -> None:
    """Groups, compositions, golden files, archives, attestations, packages."""
    release = project.folder / isa
    report = api.verify(release, lock=project.lock)
    assert failed(report) == []
    assert {"m.tar", "m.intoto.json", "m.ortpackage"} <= {
        Path(f.folder).name for f in report.folders
    }


def test_what_is_mixed_of_two_kinds_is_told(project: Project) -> None:
    one, other = (project.folder / isa for isa in ("avx2", "avx512"))
    name = "m/default/ends/encoder_ctx.onnx"
    shutil.copyfile(other / name, one / name)
    told = failed(api.verify(one / "m", lock=project.lock))
    assert told and all("encoder_ctx.onnx" in each for each in told)


def test_locks_and_builds_are_compared_by_kind(made: Hosts, project: Project) -> None:
    alone = project.folder / "alone.lock.yaml"
    alone.write_bytes(made.first)
    found = api.diff(alone, project.lock)
    assert [(c.area, c.what) for c in found.differences] == [
        ("host", "has outputs in the lock now")
    ]
    assert not found.files and not api.diff(project.lock, alone).same
    assert api.diff(project.lock, project.lock).same
    for isa in ("avx2", "avx512"):
        build = project.folder / isa / "m"
        assert api.diff(build, project.lock).same, isa
    edited = project.folder / "edited.lock.yaml"
    file = hosts.views(lockfile.read(project.lock))[1].folders["default/ends"]["head_ctx.onnx"]
    edited.write_bytes(made.both.replace(file.sha256.encode(), b"0" * 64))
    (changed,) = api.diff(project.lock, edited).files
    kind = hosts.name(hosts.kinds(lockfile.read(project.lock))[1])
    assert changed.file == f"default/ends/head_ctx.onnx ({kind})"


def test_plan_reads_it(project: Project) -> None:
    assert api.plan(project.manifest, out=project.folder / "avx512").groups
