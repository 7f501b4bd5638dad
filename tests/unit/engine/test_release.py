"""Release files are of what is published, follow from the lock, and go when they do not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from epctx import api
from epctx import lockfile as locks
from epctx.engine.output.attestation import UNIDENTIFIED_BUILDER
from epctx.errors import CompileError, LockError, StorageError
from epctx.files.digest import Digest
from epctx.lockfile.types import Lock, LockedFile
from epctx.manifest import Manifest
from tests.kit.projects import Project

ALL = {"golden": True, "archive": True, "attest": True}
NAMES = {"m.tar", "m.intoto.json", "m.ortpackage"}


@pytest.fixture
def released(project: Project) -> Project:
    """A release with everything: golden files, archive, attestation, package."""
    project.build(**ALL, builder_id="https://ci.example.com/release")
    api.package(project.manifest, out=project.folder / "dist")
    assert beside(project) == NAMES
    return project


def beside(project: Project) -> set[str]:
    return {path.name for path in (project.folder / "dist").iterdir()} & NAMES


def other_weights(project: Project) -> None:
    project.section("model_groups", "g")["node_name_prefix"] = "x_"


def without_a_group(project: Project) -> None:
    project.document["model_groups"] = {
        "h": {"models": ["a"], "execution_providers": ["ref"], "embed_mode": 1}
    }
    project.document["models"] = {"a": {"path": "a.onnx"}}


def one_more_target(project: Project) -> None:
    project.document["targets"] = {"default": {}, "other": {}}


@pytest.mark.parametrize("change", [other_weights, without_a_group, one_more_target])
def test_what_is_of_other_outputs_is_removed(
    released: Project, change: Callable[[Project], None]
) -> None:
    change(released)
    released.build()
    assert beside(released) == set()
    told = released.notices()
    assert sorted(told) == [
        f"removed {name}, which belonged to earlier outputs" for name in sorted(NAMES)
    ]


@pytest.mark.parametrize("how", [{}, {"cache": False}, {"locked": True}])
def test_what_is_of_these_outputs_stays(released: Project, how: dict[str, bool]) -> None:
    """Built anew to the same bytes, too; golden files belong to them."""
    released.build(**how)
    assert beside(released) == NAMES and released.notices() == []
    assert (released.published / "g" / "golden" / "golden.json").is_file()
    assert api.verify(released.folder / "dist", lock=released.lock).passed


def test_of_outputs_that_were_lost_and_are_the_same_it_stays(released: Project) -> None:
    shutil.rmtree(released.folder / "dist" / "m")
    released.build()
    assert beside(released) == NAMES


def test_a_part_that_becomes_another_is_enough(released: Project) -> None:
    other_weights(released)
    released.build(only=["g"])
    assert beside(released) == set()


def test_a_build_that_publishes_nothing_leaves_it(
    released: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_weights(released)

    def fails(*arguments: object) -> None:
        raise CompileError("no", remedy="x")

    with monkeypatch.context() as patch:
        patch.setattr("epctx.stages.compile.run", fails)
        with pytest.raises(CompileError):
            released.build()
    assert beside(released) == NAMES
    released.build()
    assert beside(released) == set(), "it is still known after a build that failed"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_what_somebody_wrote_to_is_refused_before_anything_is_changed(
    released: Project, name: str
) -> None:
    path = released.folder / "dist" / name
    edited = path / "notes.txt" if path.is_dir() else path
    edited.write_bytes(b"mine")
    files = released.files()
    other_weights(released)
    with pytest.raises(StorageError, match=f"{name}: belongs to earlier outputs") as caught:
        released.build()
    assert caught.value.remedy.startswith("move or remove it")
    assert released.files() == files and beside(released) == NAMES
    assert edited.read_bytes() == b"mine"


def test_what_epctx_did_not_make_is_left_and_told(project: Project) -> None:
    project.build()
    mine = project.folder / "dist" / "m.tar"
    mine.write_bytes(b"mine")
    (project.folder / "dist" / "notes.txt").write_bytes(b"mine")
    other_weights(project)
    project.build()
    assert mine.read_bytes() == b"mine"
    assert project.notices() == [
        "kept m.tar, which may not belong to these outputs: no build has recorded it"
    ]


def test_a_record_of_a_stranger_removes_nothing_else(released: Project) -> None:
    """It names files by what lies at three places, and each must be what it says."""
    out = released.folder / "dist"
    path = out / ".m.record.json"
    record = json.loads(path.read_bytes())
    record["released"] = {
        **record["released"],
        "../m.yaml": {"sha256": "0" * 64, "size": 1},
        "m.build.json": {"sha256": "0" * 64, "size": 1},
    }
    path.write_text(json.dumps(record))
    other_weights(released)
    released.build()
    assert released.manifest.is_file() and (out / "m.build.json").is_file()
    for broken in (b"", b"{", b"[]", b'{"released": 1}'):
        path.write_bytes(broken)
        released.build(archive=True)
        assert beside(released) == {"m.tar"}


def test_golden_files_are_in_the_lock_until_their_group_is_another(released: Project) -> None:
    lock = locks.read(released.lock)
    folder = released.published / "g" / "golden"
    assert lock.golden["default/g"].keys() == {p.name for p in folder.iterdir()} - {"SHA256SUMS"}
    released.build()
    assert locks.read(released.lock) == lock
    other_weights(released)
    released.build()
    assert locks.read(released.lock).golden == {} and not folder.exists()


def test_a_locked_release_is_that_of_the_lock(released: Project) -> None:
    before = released.lock.read_bytes()
    shutil.rmtree(released.folder / "dist")
    released.build(**ALL, locked=True, builder_id="https://ci.example.com/release")
    assert released.lock.read_bytes() == before
    lock = locks.read(released.lock)
    golden = {**lock.golden["default/g"]}
    name = next(iter(golden))
    text = released.lock.read_text(encoding="utf-8")
    released.lock.write_text(text.replace(golden[name].sha256, "0" * 64), encoding="utf-8")
    files = released.files()
    with pytest.raises(LockError, match=f"golden/{name} of default/g has other content") as caught:
        released.build(golden=True, locked=True)
    assert "another kind of CPU" in str(caught.value)
    assert released.files() == files


def test_a_lock_without_golden_files_is_told_before_anything_runs(project: Project) -> None:
    project.build()
    project.events.clear()
    with pytest.raises(LockError, match="lists no golden files of default/g") as caught:
        project.build(golden=True, locked=True)
    assert "epctx build --golden" in caught.value.remedy and project.events == []


def test_other_golden_files_make_archive_and_attestation_stale(released: Project) -> None:
    released.section("model_groups", "g", "verify")["inputs"] = {"count": 1, "seed": 9}
    released.build(golden=True)
    assert beside(released) == {"m.ortpackage"}


def test_another_archive_makes_an_attestation_stale(released: Project) -> None:
    shutil.rmtree(released.published / "g" / "golden")
    released.build(archive=True)
    assert beside(released) == {"m.tar", "m.ortpackage"}
    assert api.verify(released.folder / "dist" / "m.tar", lock=released.lock).passed


def test_an_attestation_names_the_archive_that_is_there(project: Project) -> None:
    project.build(archive=True)
    project.build(attest=True, builder_id="https://ci.example.com/release")
    document = json.loads((project.folder / "dist" / "m.intoto.json").read_bytes())
    assert "m.tar" in {each["name"] for each in document["subject"]}


def test_the_builder_is_whoever_builds(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_WORKFLOW_REF", "CI_RUNNER_ID", "SYSTEM_DEFINITIONID", "JENKINS_URL"):
        monkeypatch.delenv(name, raising=False)
    path = project.folder / "dist" / "m.intoto.json"

    def builder(**options: str) -> str:
        project.build(attest=True, **options)
        found = json.loads(path.read_bytes())["predicate"]["runDetails"]["builder"]["id"]
        return str(found)

    assert builder() == UNIDENTIFIED_BUILDER
    assert any("--builder-id" in notice for notice in project.notices())
    monkeypatch.setenv("CI_PROJECT_URL", "https://gitlab.com/org/models")
    monkeypatch.setenv("CI_RUNNER_ID", "12")
    assert builder() == "https://gitlab.com/org/models/-/runners/12"
    assert builder(builder_id="urn:example:release") == "urn:example:release"
    assert project.notices() == []


def test_the_manifest_that_was_parsed_is_named(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another file by the time that the attestation is written."""
    from epctx.engine.output import attestation
    from epctx.files import digest

    project.write()
    parsed = digest.of_file(project.manifest, "sha256").hex
    make = attestation.make

    def edited(
        manifest: Manifest,
        lock: Lock,
        subjects: Mapping[str, LockedFile],
        builder: str,
        signers: Mapping[Digest, str],
    ) -> bytes:
        project.manifest.write_text("name: another\n", encoding="utf-8")
        return make(manifest, lock, subjects, builder, signers)

    monkeypatch.setattr(attestation, "make", edited)
    project.build(attest=True)
    document = json.loads((project.folder / "dist" / "m.intoto.json").read_bytes())
    (named,) = (
        each["digest"]
        for each in document["predicate"]["buildDefinition"]["resolvedDependencies"]
        if each["name"] == "m.yaml"
    )
    assert named == {"sha256": parsed}


def test_golden_files_of_a_folder_below_the_output(released: Project, tmp_path: Path) -> None:
    """As an archive is unpacked: the lock is all that is needed to tell a change."""
    shutil.copytree(released.folder / "dist" / "m", tmp_path / "m")
    assert api.verify(tmp_path / "m", lock=released.lock, golden=True).passed
    folder = tmp_path / "m" / "default" / "g" / "golden"
    (folder / "run.sh").write_bytes(b"echo")
    text = (folder / "SHA256SUMS").read_text()
    from epctx.files import digest

    sums = f"{text}{digest.of_bytes(b'echo', 'sha256').hex}  run.sh\n"
    (folder / "SHA256SUMS").write_text(sums)
    assert api.verify(tmp_path / "m").passed, "its own sums say so"
    report = api.verify(tmp_path / "m", lock=released.lock)
    assert {f.subject for f in report.findings("fail")} == {"golden/run.sh", "golden/SHA256SUMS"}
