"""What a kit holds, and what it is not made of."""

import errno
import hashlib
import json
import shutil
from pathlib import Path

import onnx
import pytest

from epctx import api
from epctx.errors import StorageError, UsageError, VerificationError
from epctx.files import copying
from tests.kit import compositions, kits, onnx_text, projects
from tests.kit.projects import Project

pytestmark = pytest.mark.usefixtures("jobs_inline")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return kits.build(tmp_path_factory.mktemp("built"))


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_a_kit_has_models_golden_files_the_script_and_their_sums(project: Project) -> None:
    made = api.kit(project.folder / "dist" / "m", expect_driver="1.2")
    assert made.path == project.folder / "dist" / "m.kit"
    assert (made.models, made.left) == (2, {})
    assert files(made.path) == [
        "README.txt",
        "SHA256SUMS",
        "check_device.py",
        "default/one/a_ctx.onnx",
        "default/one/golden/a.npz",
        "default/two/b_ctx.onnx",
        "default/two/golden/b.npz",
        "kit.json",
    ]
    for line in (made.path / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((made.path / name).read_bytes()).hexdigest() == digest
    record = json.loads((made.path / "kit.json").read_bytes())
    assert record["expect_driver"] == "1.2" and "onnxruntime" in record["built_with"]
    assert not [name for name in record["built_with"] if "/" in name], "no libraries' digests"
    model = record["sets"][0]["models"][0]
    assert model["name"] == "default/one/a" and model["tolerances"]["y"]["max_rel"] == 1e-5
    assert "epctx verify" in (made.path / "README.txt").read_text()


def test_each_output_has_the_limits_of_its_own_precision(tmp_path: Path) -> None:
    text = (
        "g (float[2] x) => (float[2] a, float[2] b)"
        " { a = Tanh(x) h = Cast <to = 10> (a) b = Cast <to = 1> (h) }"
    )
    project = Project(folder=tmp_path, document=projects.document({"one": ["m"]}))
    project.section("defaults")["execution_providers"] = []
    onnx.save(onnx_text.proto(text), tmp_path / "m.onnx")
    project.build(golden=True)
    made = api.kit(project.folder / "dist" / "m")
    limits = json.loads((made.path / "kit.json").read_bytes())["sets"][0]["models"][0]["tolerances"]
    assert {name: each["max_rel"] for name, each in limits.items()} == {"a": 1e-5, "b": 1e-2}


def test_a_group_alone_has_its_kit_beside_the_build_not_in_it(project: Project) -> None:
    made = api.kit(project.published / "one")
    assert made.path == project.folder / "dist" / "one.kit"
    assert made.models == 1


def test_verify_checks_a_kit_by_its_own_sums(project: Project) -> None:
    made = api.kit(project.folder / "dist" / "m").path
    found = api.verify(project.folder / "dist")
    assert found.passed and f"{made.as_posix()}/default/one" in {
        each.folder for each in found.folders
    }
    (made / "check_device.py").write_text("print('ok')", encoding="utf-8")
    (failed,) = api.verify(made).findings("fail")
    assert failed.subject == "check_device.py"


def test_a_kit_replaces_a_kit_and_nothing_else(project: Project, tmp_path: Path) -> None:
    source = project.published / "one"
    made = api.kit(source, out=tmp_path / "k")
    (made.path / "left.txt").touch()
    assert not (api.kit(source, out=tmp_path / "k").path / "left.txt").exists()
    assert [each.name for each in tmp_path.iterdir()] == ["k"]
    other = tmp_path / "mine"
    other.mkdir()
    with pytest.raises(UsageError, match="is not a kit"):
        api.kit(source, out=other)
    assert list(other.iterdir()) == []


def test_a_disk_that_is_full_leaves_the_kit_that_was_there(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = project.published / "one"
    before = files(api.kit(source, out=tmp_path / "k").path)

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(copying, "copy", full)
    with pytest.raises(StorageError, match="No space left"):
        api.kit(source, out=tmp_path / "k")
    assert files(tmp_path / "k") == before
    assert [each.name for each in tmp_path.iterdir()] == ["k"], "nothing half written"


def test_what_is_not_as_it_was_built_is_not_packed(project: Project, tmp_path: Path) -> None:
    copy = shutil.copytree(project.folder / "dist", tmp_path / "dist")
    shutil.rmtree(copy / "m.kit", ignore_errors=True)
    model = copy / "m" / "default" / "one" / "a_ctx.onnx"
    model.write_bytes(model.read_bytes() + b"\0")
    with pytest.raises(VerificationError, match="no kit is made of it"):
        api.kit(copy / "m")
    assert not (copy / "m.kit").exists()


def test_without_golden_files_the_remedy_is_told(project: Project, tmp_path: Path) -> None:
    copy = shutil.copytree(project.folder / "dist", tmp_path / "dist")
    shutil.rmtree(copy / "m" / "default" / "two" / "golden")
    with pytest.raises(UsageError, match="epctx build --golden"):
        api.kit(copy / "m")


def test_a_package_takes_its_golden_files_from_the_build(project: Project, tmp_path: Path) -> None:
    out = tmp_path / "dist"
    api.package(project.manifest, out=out)
    package = out / "m.ortpackage"
    with pytest.raises(UsageError, match="no golden"):
        api.kit(package)
    made = api.kit(package, golden=project.folder / "dist" / "m", out=tmp_path / "k")
    assert made.models == 2 and (made.path / "default/two/golden/b.npz").is_file()
    assert files(made.path) == files(api.kit(project.folder / "dist" / "m").path)


def test_a_composition_has_the_eps_of_its_parts(tmp_path: Path) -> None:
    project = compositions.project(tmp_path, {"whole": {"parts": dict(compositions.PARTS)}})
    project.build(golden=True)
    left = api.kit(project.folder / "dist" / "m").left
    assert left["default/whole/whole"] == left["default/middle/body"]
    assert "epctx alone runs it" in left["default/whole/whole"]


def test_models_that_only_epctx_runs_are_named(tmp_path: Path) -> None:
    project = projects.make(tmp_path, {"shared": ["a", "b"]})
    project.build(golden=True)
    made = api.kit(project.folder / "dist" / "m")
    assert list(made.left) == ["default/shared/a", "default/shared/b"]
    assert "epctx alone runs it" in made.left["default/shared/a"]
    (each,) = json.loads((made.path / "kit.json").read_bytes())["sets"]
    assert each["share"] and each["why_not"] == made.left["default/shared/a"]
