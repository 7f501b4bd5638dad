"""The tables of docs/reference/trust.md: what detects a change, with the lock and without.

Whoever changes something here knows of SHA256SUMS, and writes it anew.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from onnx import helper

from epctx import api
from epctx import lockfile as locks
from epctx.errors import VerificationError
from epctx.files import digest
from epctx.verification.findings import Outcome, VerifyReport
from tests.kit import folders, projects
from tests.kit.command_line import inside
from tests.kit.compositions import PARTS
from tests.kit.compositions import project as composed
from tests.kit.inline import Inline
from tests.kit.projects import Project

pytestmark = pytest.mark.usefixtures("jobs_inline")

FOLDERS = {"group": "default/ends", "composition": "default/whole", "golden": "default/ends/golden"}
BUILDER = "https://ci.example.com/release"


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    """Without worker processes: nothing here crashes."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr("epctx.worker.pool.Worker", Inline)
        projects.steady(patching)
        yield patching


@pytest.fixture(scope="module")
def released(patch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = composed(tmp_path_factory.mktemp("anchor") / "p", {"whole": {"parts": PARTS}})
    made.build(golden=True, archive=True, attest=True, builder_id=BUILDER)
    api.package(made.manifest, out=made.folder / "dist")
    return made


@pytest.fixture
def dist(released: Project, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released.folder / "dist", tmp_path / "dist"))


def resum(folder: Path) -> None:
    names = sorted(p.name for p in folder.iterdir() if p.is_file() and p.name != "SHA256SUMS")
    lines = [f"{digest.of_file(folder / name, 'sha256').hex}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def told(report: VerifyReport) -> set[str]:
    """The files that integrity finds something wrong with."""
    return {f.subject for f in report.findings("fail") if f.policy == "integrity"}


def entries(report: VerifyReport, outcome: Outcome) -> set[Path]:
    """The entries that a report says this of, as a whole."""
    return {
        Path(folder.folder, finding.subject)
        for folder in report.folders
        for finding in folder.findings
        if finding.check == "covered" and finding.outcome == outcome
    }


def models(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix in (".onnx", ".npz"))


def flip(folder: Path) -> None:
    path = models(folder)[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lose(folder: Path) -> None:
    models(folder)[0].unlink()


def add(folder: Path) -> None:
    (folder / "notes.txt").write_bytes(b"echo")


CHANGES = {"changed": flip, "missing": lose, "too many": add}


def test_as_it_was_released_everything_is_verified(released: Project, dist: Path) -> None:
    (dist / "m.report.html").touch()
    report = api.verify(dist, lock=released.lock, golden=True)
    assert report.passed
    names = {Path(f.folder).name for f in report.folders if f.folder != dist.as_posix()}
    assert names == {
        *("m.tar", "m.intoto.json", "m.ortpackage"),
        *("ends", "middle", "whole"),
    }
    byproducts = {"m.build.json", "m.report.html", ".m.record.json", ".m.lock"}
    assert {f.subject for f in report.findings("not covered")} == byproducts


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("kind", FOLDERS)
def test_a_change_of_a_folder_is_told_by_its_sums(
    kind: str, change: Callable[[Path], None], dist: Path
) -> None:
    change(dist / "m" / FOLDERS[kind])
    assert told(api.verify(dist / "m"))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("kind", FOLDERS)
def test_a_change_by_who_writes_sums_anew_is_told_by_the_lock(
    kind: str, change: Callable[[Path], None], released: Project, dist: Path
) -> None:
    folder = dist / "m" / FOLDERS[kind]
    change(folder)
    resum(folder)
    assert not told(api.verify(dist / "m"))
    report = api.verify(dist / "m", lock=released.lock)
    assert told(report) and not report.passed


STRAYS = {
    "a file": lambda root: (root / "run.sh").write_bytes(b"echo"),
    "a file of a target": lambda root: (root / "default" / "run.sh").write_bytes(b"echo"),
    "an empty folder": lambda root: (root / "other").mkdir(),
    "a link": lambda root: (root / "default" / "link").symlink_to("/etc"),
    "a group": lambda root: shutil.copytree(root / "default/ends", root / "default/evil"),
    "a group of another case": lambda root: shutil.copytree(
        root / "default/ends", root / "default/ENDS"
    ),
    "a target": lambda root: shutil.copytree(root / "default", root / "evil"),
}


@pytest.mark.parametrize("name", STRAYS)
def test_what_is_of_no_group_of_the_lock_is_told(name: str, released: Project, dist: Path) -> None:
    """A copy of what was built, too: the lock has none of that name."""
    STRAYS[name](dist / "m")
    for named in (dist, dist / "m"):
        report = api.verify(named, lock=released.lock)
        assert told(report) and not report.passed


def test_a_group_that_is_called_a_kit_is_still_a_group(dist: Path, tmp_path: Path) -> None:
    """An empty kit.json hid damaged bytes from every command that looks for groups."""
    (dist / "m" / FOLDERS["group"] / "kit.json").touch()
    flip(dist / "m" / FOLDERS["group"])
    ran = inside("verify", "dist/m", "--junit", "v.xml", cwd=tmp_path)
    assert ran.returncode == 7 and "kit.json: is not in SHA256SUMS" in ran.stdout
    assert 'type="E0701"' in (tmp_path / "v.xml").read_text(encoding="utf-8")
    with pytest.raises(VerificationError, match="does not pass the checks"):
        api.kit(dist / "m")
    assert not (dist / "m.kit").exists()


def test_a_model_of_a_stranger_does_not_hide_the_groups_below(dist: Path) -> None:
    """Its folder becomes a group, which epctx did not make: what is in it is "not checkable"."""
    stranger = folders.model(folders.context_node(source="Alien", embed_mode=1))
    stranger.producer_name = "stranger"
    (dist / "m" / "default" / "x_ctx.onnx").write_bytes(stranger.SerializeToString())
    assert api.verify(dist / "m").passed
    flip(dist / "m" / FOLDERS["group"])
    assert told(api.verify(dist / "m"))


def as_kit(dist: Path) -> None:
    (dist / "m" / "default" / "kit.json").touch()


def as_link(dist: Path) -> None:
    (dist / "m" / "default").rename(dist / "elsewhere")
    (dist / "m" / "default").symlink_to(dist / "elsewhere")


def plain(dist: Path) -> None:
    model = helper.make_model(helper.make_graph([], "plain", [], []))
    (dist / "m" / "x.onnx").write_bytes(model.SerializeToString())


def linked_report(dist: Path) -> None:
    (dist / "m.build.json").unlink()
    (dist / "m.build.json").symlink_to(dist / "m.tar")


def in_git(dist: Path) -> None:
    (dist / "m" / ".git" / "hooks").mkdir(parents=True)
    (dist / "m" / ".git" / "hooks" / "run").touch()
    (dist / "m" / ".git" / "config").touch()


UNCOVERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "kit.json of a target": (as_kit, "m/default/kit.json"),
    "a target that is a link": (as_link, "m/"),
    "a plain model": (plain, "m/x.onnx"),
    "git's folder": (in_git, "m/.git/"),
    "a script beside the outputs": (lambda d: (d / "run.sh").touch(), "run.sh"),
    "logs": (lambda d: (d / "m.logs").mkdir(), "m.logs/"),
    "a report of nothing": (lambda d: (d / "n.build.json").touch(), "n.build.json"),
    "a report that is a link": (linked_report, "m.build.json"),
}


@pytest.mark.needs("links", "some are put in the way")
@pytest.mark.parametrize("name", UNCOVERED)
def test_what_nothing_checks_is_listed_and_fails_under_a_lock(
    name: str, released: Project, dist: Path
) -> None:
    change, entry = UNCOVERED[name]
    change(dist)
    report = api.verify(dist)
    assert report.passed and dist / entry in entries(report, "not covered")
    report = api.verify(dist, lock=released.lock)
    assert dist / entry in entries(report, "fail")


SUMS: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "in another order": lambda p: p.write_bytes(b"".join(p.read_bytes().splitlines(True)[::-1])),
    "with an empty line": lambda p: p.write_bytes(p.read_bytes() + b"\n"),
    "in capitals": lambda p: p.write_bytes(p.read_bytes().replace(b"a", b"A", 1)),
}


@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.parametrize("name", SUMS)
def test_sums_that_are_not_those_of_the_lock_are_told(
    name: str, kind: str, released: Project, dist: Path
) -> None:
    folder = dist / "m" / FOLDERS[kind]
    SUMS[name](folder / "SHA256SUMS")
    report = api.verify(dist / "m", lock=released.lock)
    subject = "golden/SHA256SUMS" if kind == "golden" else "SHA256SUMS"
    assert subject in told(report)


def test_a_release_under_another_name_is_held_to_the_whole_lock(
    released: Project, dist: Path
) -> None:
    renamed = (dist / "m").rename(dist / "v2")
    assert api.verify(renamed, lock=released.lock).passed
    shutil.rmtree(renamed / FOLDERS["composition"])
    (renamed / "default" / "run.sh").touch()
    for named in (renamed, dist, renamed / "default"):
        report = api.verify(named, lock=released.lock)
        assert {"files", "covered"} <= {f.check for f in report.findings("fail")}
    assert api.verify(renamed / FOLDERS["group"], lock=released.lock).passed


@pytest.mark.parametrize("kind", ["group", "composition"])
def test_a_folder_that_is_missing_is_told_by_the_lock(
    kind: str, released: Project, dist: Path
) -> None:
    shutil.rmtree(dist / "m" / FOLDERS[kind])
    report = api.verify(dist / "m", lock=released.lock)
    assert any(f.check == "files" for f in report.findings("fail"))


def test_golden_files_that_are_missing_are_told_where_they_are_asked_for(
    released: Project, dist: Path
) -> None:
    """A folder may go without them; to run them, it may not."""
    shutil.rmtree(dist / "m" / FOLDERS["golden"])
    assert api.verify(dist / "m", lock=released.lock).passed
    report = api.verify(dist / "m", golden=True)
    (fault,) = report.findings("fail")
    assert (fault.check, fault.message) == ("golden", "the folder has no golden inputs")


def test_golden_files_of_no_model_are_told(dist: Path) -> None:
    folder = dist / "m" / FOLDERS["golden"]
    record = json.loads((folder / "golden.json").read_bytes())
    left = {name: {**model, "sets": []} for name, model in record["models"].items()}
    for models_left in ({}, left):
        text = json.dumps({**record, "models": models_left})
        (folder / "golden.json").write_text(text, encoding="utf-8")
        resum(folder)
        report = api.verify(dist / "m" / "default" / "ends", golden=True)
        faults = [f for f in report.findings("fail") if f.check == "golden"]
        assert {f.subject for f in faults} == {"encoder_ctx.onnx", "head_ctx.onnx"}


def test_packages_have_no_golden_files_and_it_is_told(dist: Path) -> None:
    report = api.verify(dist / "m.ortpackage", golden=True)
    assert [f.check for f in report.findings("fail")] == ["golden"]
    assert api.verify(dist, golden=True).passed, "the groups beside it have some"


def test_golden_files_that_the_lock_does_not_know_are_told(released: Project, dist: Path) -> None:
    lock = locks.read(released.lock)
    text = locks.text(replace(lock, golden={}))
    (dist / "m.lock.yaml").write_text(text, encoding="utf-8")
    report = api.verify(dist / "m" / "default" / "ends", lock=dist / "m.lock.yaml")
    assert told(report) == {"golden/SHA256SUMS"}


def test_files_of_a_release_beside_the_groups_are_held_to_the_lock_too(
    released: Project, dist: Path
) -> None:
    """As a workflow verifies the whole of `dist`: nothing in it is passed over."""
    with (dist / "m.tar").open("ab") as stream:
        stream.write(b"more")
    report = api.verify(dist, lock=released.lock)
    assert told(report) == {"m.tar"}


def test_who_built_it_is_said_by_who_signs_it(released: Project, dist: Path) -> None:
    """No digest tells who wrote an attestation: without a signature its builder is a claim."""
    path = dist / "m.intoto.json"
    document = json.loads(path.read_bytes())
    document["predicate"]["runDetails"]["builder"]["id"] = "https://example.com/another"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert api.verify(path, lock=released.lock).passed


def test_a_report_is_believed_in_nothing(released: Project, dist: Path) -> None:
    """Neither to pass what is wrong, nor to fail what is right."""
    report = dist / "m.build.json"
    document = json.loads(report.read_bytes())
    flip(dist / "m" / FOLDERS["group"])
    (path,) = models(dist / "m" / FOLDERS["group"])[:1]
    for group in document["groups"]:
        for file in group["files"]:
            if file["name"] == path.name:
                file["sha256"]["hex"] = digest.of_file(path, "sha256").hex
    report.write_text(json.dumps(document), encoding="utf-8")
    assert told(api.verify(dist, lock=released.lock)) == {path.name}
    shutil.copytree(released.folder / "dist" / "m", dist / "m", dirs_exist_ok=True)
    report.write_bytes(b"{")
    assert api.verify(dist, lock=released.lock).passed
