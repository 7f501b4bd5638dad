"""A release made twice in two places is the same; a device without the sources can check it."""

from __future__ import annotations

import json
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx import api
from epctx.engine.output import attestation
from epctx.errors import UsageError
from epctx.files import digest
from epctx.verification.findings import VerifyReport
from epctx.verification.numbers import golden_files
from tests.kit.command_line import epctx
from tests.kit.compositions import PARTS, project

pytestmark = pytest.mark.usefixtures("jobs_inline")

FLAGS = ("--golden", "--archive", "--attest")


@dataclass(frozen=True)
class Made:
    """A release in a folder. `files`: all that is in `dist` but the report, by path."""

    folder: Path
    files: dict[str, bytes]


def make(folder: Path, **variables: str) -> Made:
    """By the command line, as a release job does, in a cache of its own."""
    verify = {"inputs": {"count": 2}}
    made = project(folder, {"whole": {"parts": PARTS, "verify": verify}}, verify=verify)
    cache = {"EPCTX_CACHE_DIR": str(folder / "cache")}
    done = epctx("build", made.manifest.name, *FLAGS, cwd=folder, **cache, **variables)
    assert done.returncode == 0, done.stderr
    dist = folder / "dist"
    files = {
        path.relative_to(dist).as_posix(): path.read_bytes()
        for path in sorted(dist.rglob("*"))
        if path.is_file() and path.name not in ("m.build.json", ".m.lock", ".m.record.json")
    }
    return Made(folder, files)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("one") / "release")


@pytest.fixture
def device(first: Made, tmp_path: Path) -> Path:
    """The archive, unpacked where nothing else is."""
    with tarfile.open(first.folder / "dist" / "m.tar") as archive:
        archive.extractall(tmp_path / "device", filter="data")
    return tmp_path / "device" / "m"


def test_a_release_made_twice_in_two_places_is_the_same(first: Made, tmp_path: Path) -> None:
    variables = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "7", "USER": "other"}
    second = make(tmp_path / "a deep" / "place", **variables)
    assert sorted(first.files) == sorted(second.files)
    assert [name for name in first.files if first.files[name] != second.files[name]] == []
    assert {
        "m.tar",
        "m.intoto.json",
        "m/default/ends/golden/SHA256SUMS",
        "m/default/ends/golden/encoder.npz",
        "m/default/whole/golden/whole.npz",
    } <= set(first.files)


def test_the_attestation_fits_its_schemas_and_names_every_file(first: Made) -> None:
    content = first.files["m.intoto.json"]
    attestation.check(content)
    named = {each["name"] for each in json.loads(content)["subject"]}
    assert named == set(first.files) - {"m.intoto.json"} | {"m"}, "and the artifact of all of them"
    assert str(first.folder).encode() not in content


def golden(device: Path, manifest: Path) -> VerifyReport:
    """As on a device: the manifest tells the options of the EPs, the sources are not there."""
    alone = device.parent / "m.yaml"
    shutil.copy(manifest, alone)
    return api.verify(device, manifest=alone, golden=True)


def test_a_device_without_the_sources_checks_what_it_got(first: Made, device: Path) -> None:
    report = golden(device, first.folder / "m.yaml")
    assert report.passed
    told = [f.message for f in report.findings("pass") if "the golden outputs" in f.message]
    assert len(told) == 4 and all("1 output on" in message for message in told)
    # Without sources nothing else can be compared, and it is said.
    assert any("no source" in f.message for f in report.findings("not checkable"))


def test_golden_files_have_sums_of_their_own(first: Made, device: Path) -> None:
    damaged = device / "default" / "middle" / "golden" / "body.npz"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    (device / "default" / "ends" / "golden" / "extra").write_bytes(b"")
    failed = {
        (f.check, f.subject) for f in golden(device, first.folder / "m.yaml").findings("fail")
    }
    assert failed == {("golden", "golden/body.npz"), ("golden", "golden/extra")}


def test_a_device_that_computes_something_else_is_told(first: Made, device: Path) -> None:
    """As with a bug in an SDK: the files are those that were made, the numbers are not right."""
    folder = device / "default" / "ends" / "golden"
    model = golden_files.read_record(folder).models["head"]
    (case,) = golden_files.read(folder, "head", model)
    wrong = {name: array + 1 for name, array in case.outputs.items()}
    (folder / "head.npz").unlink()
    golden_files.write(folder / "head.npz", [replace(case, outputs=wrong)])
    names = sorted(path.name for path in folder.iterdir() if path.name != "SHA256SUMS")
    sums = [f"{digest.of_file(folder / name, 'sha256').hex}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(sums))
    report = golden(device, first.folder / "m.yaml")
    assert {(f.subject, f.check) for f in report.findings("fail")} == {("head_ctx.onnx", "outputs")}
    assert not report.passed


def test_a_release_is_of_the_whole_manifest(first: Made) -> None:
    manifest = first.folder / "m.yaml"
    with pytest.raises(UsageError, match="whole manifest"):
        api.build(manifest, out=first.folder / "dist", only=["ends"], archive=True)


def test_golden_files_stay_until_their_group_is_another(tmp_path: Path) -> None:
    made = project(tmp_path / "p", {"whole": {"parts": PARTS}})
    report = made.build(golden=True)
    assert all(group.golden for group in report.groups)
    report = made.build()
    assert {group.state for group in report.groups} == {"up to date"}
    made.build(locked=True)
    assert (made.published / "ends" / "golden" / "head.npz").is_file()
    made.section("model_groups", "middle")["embed_mode"] = 1
    made.build()
    assert not (made.published / "middle" / "golden").exists()
    assert (made.published / "ends" / "golden").exists()
