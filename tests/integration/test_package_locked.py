"""A package under a lock: whatever does not follow from the lock is told, whoever resummed it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epctx import api
from epctx import lockfile as locks
from epctx.commands.package import checking
from epctx.errors import LockError
from epctx.lockfile.types import Lock
from epctx.verification.findings import Finding
from tests.kit import projects
from tests.kit.command_line import epctx
from tests.kit.packaged import (
    DAMAGES,
    Damage,
    edit,
    made,
    options,
    ort,
    package,
    resum,
    variants,
    with_extras,
)
from tests.kit.projects import Project

pytestmark = pytest.mark.usefixtures("jobs_inline")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two groups of which one has a second model, for two targets; an asset and a file."""
    found = with_extras(tmp_path_factory.mktemp("locked"))
    package(found)
    return found


@pytest.fixture(scope="module")
def lock(project: Project) -> Lock:
    return locks.read(project.lock)


def faults(folder: Path, lock: Lock) -> list[Finding]:
    report = checking.check(folder, "p", lock=lock, where="the lock").report
    return [f for f in report.findings if f.check == "lock" and f.outcome == "fail"]


def test_what_was_packaged_follows_from_the_lock_that_a_build_wrote(
    project: Project, tmp_path: Path
) -> None:
    """The lock is the same whether a package is made or not, but for what is pushed of it."""
    before = locks.read(project.lock)
    project.lock.unlink()
    project.build()
    assert locks.read(project.lock) == replace(before, oci={})
    report = api.verify(made(project), lock=project.lock)
    assert report.passed
    held = {f.subject for f in report.findings("pass") if f.check == "lock"}
    assert held == {p.relative_to(made(project)).as_posix() for p in files(made(project))}


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def stranger(folder: Path) -> None:
    """A model of somebody else, which is served in the place of one that was built."""
    shutil.copy(folder / "one/g/a_ctx.onnx", folder / "one/g/evil.onnx")
    edit(lambda document: ort(document, "one").update(model_file="evil.onnx"))(folder)


def exchanged(document: dict[str, Any]) -> None:
    found = variants(document)
    found["one"], found["two"] = found["two"], found["one"]


def reordered(document: dict[str, Any]) -> None:
    """ONNX Runtime takes the first that fits."""
    document["components"]["a"]["variants"] = dict(reversed(variants(document).items()))


def without_a_target(folder: Path) -> None:
    edit(lambda document: variants(document).pop("two"))(folder)
    shutil.rmtree(folder / "two")
    resum(folder)


def add(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"echo")
        resum(folder)

    return damage


def another_asset(folder: Path) -> None:
    (path,) = (folder / "shared_assets").glob("*/tokenizer.json")
    path.write_text('{"evil": 1}', encoding="utf-8")
    resum(folder)


def exchanged_files(folder: Path) -> None:
    one, two = (folder / target / "g" / "readme.txt" for target in ("one", "two"))
    texts = one.read_bytes(), two.read_bytes()
    two.write_bytes(texts[0]), one.write_bytes(texts[1])
    resum(folder)


def provider_options(**given: str) -> Damage:
    return edit(lambda document: ort(document, "one").update(provider_options=given))


ATTACKS: dict[str, Damage] = {
    "a model of a stranger": stranger,
    "code for the device": provider_options(backend_path="/tmp/evil.so"),
    "another option of the EP": provider_options(htp_performance_mode="power_saver"),
    "an option of the session": options(**{"session.use_env_allocators": "1"}),
    "components exchanged": edit(exchanged),
    "components reordered": edit(reordered),
    "a component missing": without_a_target,
    "a component twice": edit(lambda d: d["components"].update(b=d["components"]["a"])),
    "another name": edit(lambda d: d.update(package_name="other")),
    "another version": edit(lambda d: d.update(package_version="9.9")),
    "another provenance": edit(lambda d: d["additional_metadata"]["epctx"].update(sources={})),
    "the same in other words": edit(lambda document: None),
    "a file beside the models": add("one/g/run.sh"),
    "a name in another case": add("one/g/A_CTX.onnx"),
    "a file of no one": add("notes.txt"),
    "a folder of nothing": lambda folder: (folder / "one" / "g" / "empty").mkdir(),
    "an asset of a stranger": another_asset,
    "files exchanged": exchanged_files,
    "no sums": lambda folder: (folder / "SHA256SUMS").unlink(),
    "sums of something else": lambda folder: (folder / "SHA256SUMS").write_text("0" * 64 + "  x\n"),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
}
ATTACKS |= {name: damage for name, (damage, _, _) in DAMAGES.items()}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_does_not_follow_from_the_lock_is_told(
    name: str, project: Project, lock: Lock, tmp_path: Path
) -> None:
    folder = shutil.copytree(made(project), tmp_path / "p")
    assert faults(folder, lock) == []
    ATTACKS[name](folder)
    found = faults(folder, lock)
    assert found and all(fault.remedy for fault in found)


def test_the_verdict_is_seven(project: Project, tmp_path: Path) -> None:
    folder = shutil.copytree(made(project), tmp_path / "p")
    ATTACKS["code for the device"](folder)
    ran = epctx("verify", str(folder), "--lock", str(project.lock), cwd=tmp_path)
    assert ran.returncode == 7
    assert "manifest.json" in ran.stderr + ran.stdout


def test_content_that_the_lock_has_must_be_there(
    project: Project, lock: Lock, tmp_path: Path
) -> None:
    folder = shutil.copytree(made(project), tmp_path / "p")
    for target in ("one", "two"):
        (folder / target / "g" / "a_reference.bin").write_bytes(b"another")
    resum(folder)
    assert {(f.subject, f.message) for f in faults(folder, lock)} == {
        (f"{target}/g/a_reference.bin", "differs from the lock") for target in ("one", "two")
    }


def test_a_lock_of_an_older_epctx_says_how_to_get_one(
    project: Project, lock: Lock, tmp_path: Path
) -> None:
    old = replace(lock, package=None)
    (fault,) = faults(made(project), old)
    assert "has no entry for a package" in fault.message and "epctx build" in fault.remedy
    copy = Project(folder=tmp_path / "copy", document=project.document)
    shutil.copytree(project.folder, copy.folder)
    copy.lock.write_text(locks.text(old), encoding="utf-8")
    copy.build(locked=True)  # it says enough for that
    with pytest.raises(LockError, match="has no entry for a package"):
        api.package(copy.manifest, out=copy.folder / "dist", locked=True)
    copy.build()
    assert locks.read(copy.lock) == replace(lock, oci={})
    api.package(copy.manifest, out=copy.folder / "dist", locked=True)


def test_a_package_of_another_epctx_is_told_as_that(
    project: Project, lock: Lock, tmp_path: Path
) -> None:
    """Another release may say the same in other words: nothing passes, and the way out is told."""
    other = replace(lock, toolchain={**lock.toolchain, "epctx": "9.9"})
    found = {f.subject: f for f in faults(made(project), other)}
    assert found.keys() == {"manifest.json", "SHA256SUMS"}
    assert "verify it with epctx 9.9" in found["manifest.json"].remedy


def test_a_locked_package_is_that_of_the_lock(tmp_path: Path) -> None:
    project = with_extras(tmp_path)
    package(project)
    before = json.loads((made(project) / "manifest.json").read_bytes())
    out = project.folder / "dist"
    (tmp_path / "tok" / "tokenizer.json").write_text("{}\n", encoding="utf-8")
    with pytest.raises(LockError, match=r"package: assets.tokenizer.tokenizer.json.sha256"):
        api.package(project.manifest, out=out, locked=True)
    with pytest.raises(LockError, match=r"package: assets.tokenizer"):
        project.build(locked=True)
    assert json.loads((made(project) / "manifest.json").read_bytes()) == before
    project.build()  # nothing but the asset changed: the lock tells it all the same
    api.package(project.manifest, out=out, locked=True)
    assert api.verify(made(project), lock=project.lock).passed


def test_a_part_of_a_manifest_is_held_to_its_part_of_the_lock(tmp_path: Path) -> None:
    project = projects.make(tmp_path, {"g": ["a"], "h": ["b"]})
    project.build()
    project.build(locked=True, only=["g"])
