"""An archive and an attestation under a lock: whatever does not follow from it is told."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epctx import api
from epctx import lockfile as locks
from epctx.commands.verify import releases
from epctx.errors import UsageError
from epctx.lockfile.types import Lock
from epctx.verification.findings import Finding
from tests.kit import projects
from tests.kit.compositions import PARTS
from tests.kit.compositions import project as composed
from tests.kit.inline import Inline
from tests.kit.projects import Project

BUILDER = "https://ci.example.com/release"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two groups and a composition of them."""
    folder = tmp_path_factory.mktemp("released")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("epctx.worker.pool.Worker", Inline)
        projects.steady(patch)
        made = composed(folder / "p", {"whole": {"parts": PARTS}})
        made.build(golden=True, archive=True, attest=True, builder_id=BUILDER)
    return made


@pytest.fixture
def dist(released: Project, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released.folder / "dist", tmp_path / "dist"))


@pytest.fixture
def lock(released: Project) -> Lock:
    return locks.read(released.lock)


def faults(path: Path, lock: Lock) -> list[Finding]:
    found = releases.check(path, lock, "the lock").findings
    assert found and all(f.remedy for f in found if f.outcome == "fail")
    return [finding for finding in found if finding.outcome == "fail"]


def rewritten(change: Callable[[dict[str, bytes]], object]) -> Callable[[Path], None]:
    """An archive with other members, written as `tarfile` does."""

    def edit(path: Path) -> None:
        with tarfile.open(path) as old:
            held = {m.name: old.extractfile(m) for m in old.getmembers() if m.isfile()}
            files = {name: stream.read() for name, stream in held.items() if stream is not None}
        change(files)
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as new:
            for name, content in sorted(files.items()):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                new.addfile(info, io.BytesIO(content))

    return edit


def appended(path: Path) -> None:
    """tar reads what comes later over what came before."""
    with tarfile.open(path, "a") as archive:
        content = b"a model of a stranger"
        info = tarfile.TarInfo("m/default/ends/head_ctx.onnx")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))


def linked(path: Path) -> None:
    with tarfile.open(path, "a") as archive:
        info = tarfile.TarInfo("m/default/link")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)


ARCHIVES: dict[str, Callable[[Path], object]] = {
    "another model": rewritten(lambda f: f.update({"m/default/ends/head_ctx.onnx": b"x"})),
    "a model less": rewritten(lambda f: f.pop("m/default/ends/head_ctx.onnx")),
    "a composition less": rewritten(lambda f: f.pop("m/default/whole/whole_ctx.onnx")),
    "no sums": rewritten(lambda f: f.pop("m/default/ends/SHA256SUMS")),
    "golden values of a stranger": rewritten(
        lambda f: f.update({"m/default/ends/golden/head.npz": b"x"})
    ),
    "golden files in part": rewritten(lambda f: f.pop("m/default/ends/golden/head.npz")),
    "a file more": rewritten(lambda f: f.update({"m/run.sh": b"echo"})),
    "a path that leads out": rewritten(lambda f: f.update({"../run.sh": b"echo"})),
    "the same in other words": rewritten(lambda f: None),
    "appended": appended,
    "a link": linked,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-512]),
    "empty": lambda path: path.write_bytes(b""),
    "no archive": lambda path: path.write_bytes(b"x" * 20_000),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_does_not_follow_from_the_lock_is_told(
    name: str, dist: Path, lock: Lock
) -> None:
    ARCHIVES[name](dist / "m.tar")
    assert faults(dist / "m.tar", lock)


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        document = json.loads(path.read_bytes())
        change(document)
        path.write_text(json.dumps(document), encoding="utf-8")

    return edit


def definition(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["predicate"]["buildDefinition"]
    return found


def packages(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in definition(document)["resolvedDependencies"] if "uri" in each]


ATTESTATIONS: dict[str, Callable[[Path], object]] = {
    "a subject less": edited(lambda d: d["subject"].pop()),
    "a subject more": edited(
        lambda d: d["subject"].append({"name": "m/run.sh", "digest": {"sha256": "0" * 64}})
    ),
    "a subject twice": edited(lambda d: d["subject"].append(d["subject"][1])),
    "another digest": edited(lambda d: d["subject"][3]["digest"].update(sha256="0" * 64)),
    "no digest": edited(lambda d: d["subject"][3].update(digest={"sha1": "0" * 40})),
    "another archive": edited(lambda d: d["subject"][0]["digest"].update(sha256="0" * 64)),
    "another lock": edited(
        lambda d: d["predicate"]["buildDefinition"]["internalParameters"].update(
            lock={"sha256": "0" * 64}
        )
    ),
    "another toolchain": edited(
        lambda d: definition(d)["internalParameters"]["toolchain"].update(numpy="9.9")
    ),
    "another EP": edited(
        lambda d: definition(d)["internalParameters"]["execution_providers"].popitem()
    ),
    "another version of epctx": edited(
        lambda d: d["predicate"]["runDetails"]["builder"].update(version={"epctx": "9.9"})
    ),
    "a material less": edited(lambda d: definition(d)["resolvedDependencies"].pop(2)),
    "a material more": edited(
        lambda d: definition(d)["resolvedDependencies"].append({"name": "x.onnx", "digest": {}})
    ),
    "another material": edited(
        lambda d: definition(d)["resolvedDependencies"][1]["digest"].update(blake3="0" * 64)
    ),
    "another version of a package": edited(
        lambda d: packages(d)[0].update(uri="pkg:pypi/numpy@9.9")
    ),
    "where a material is downloaded": edited(
        lambda d: packages(d)[0].update(downloadLocation="https://example.com")
    ),
    "a subject that is annotated": edited(
        lambda d: d["subject"][1].update(uri="https://example.com")
    ),
    "another name": edited(lambda d: definition(d)["externalParameters"].update(name="n")),
    "more parameters": edited(lambda d: definition(d)["externalParameters"].update(flags="-x")),
    "another build type": edited(
        lambda d: d["predicate"]["buildDefinition"].update(buildType="https://example.com")
    ),
    "no predicate": edited(lambda d: d.pop("predicate")),
    "no JSON": lambda path: path.write_bytes(b"\xff{"),
    "nested": lambda path: path.write_bytes(b"[" * 100_000),
}


@pytest.mark.parametrize("name", ATTESTATIONS)
def test_an_attestation_of_something_else_is_told(name: str, dist: Path, lock: Lock) -> None:
    ATTESTATIONS[name](dist / "m.intoto.json")
    assert faults(dist / "m.intoto.json", lock)


def test_golden_files_may_be_left_out_of_both(released: Project, dist: Path, lock: Lock) -> None:
    """A lock of a release with golden files is that of one without them, too."""
    without = replace(lock, golden={})
    assert faults(dist / "m.tar", without) and faults(dist / "m.intoto.json", without)


def test_an_archive_that_is_not_there_is_not_checkable(dist: Path, lock: Lock) -> None:
    (dist / "m.tar").unlink()
    found = releases.check(dist / "m.intoto.json", lock, "the lock").findings
    assert [f.subject for f in found if f.outcome == "not checkable"] == ["m.tar"]


def test_files_of_a_release_in_a_folder_that_is_named_are_looked_at(
    released: Project, dist: Path, lock: Lock
) -> None:
    assert {p.name for p in dist.iterdir() if releases.is_released(p, lock)} == {
        *("m.tar", "m.intoto.json")
    }
    assert releases.named([dist / "m.tar", dist / "m"]) == [dist / "m.tar"]
    appended(dist / "m.tar")
    report = api.verify([dist / "m.tar"], lock=released.lock)
    assert not report.passed


def test_without_a_lock_there_is_nothing_to_hold_them_to(dist: Path, lock: Lock) -> None:
    with pytest.raises(UsageError, match="can only be compared with a lock"):
        api.verify(dist / "m.tar")
    with pytest.raises(UsageError, match="does not exist"):
        releases.check(dist / "n.tar", lock, "the lock")
