"""`epctx diff`: what changed between builds and locks, from the toolchain to the node."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import onnx
import pytest

from epctx import api
from epctx.commands.diff.compare import Comparison
from epctx.errors import LockError, UsageError
from tests.kit.command_line import epctx
from tests.kit.projects import Project, make

pytestmark = pytest.mark.usefixtures("jobs_inline")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two builds: another weight, another EP option, a group more, a node kept off the EP."""
    folder = tmp_path_factory.mktemp("diff")
    project = make(folder / "old", {"one": ["a"], "two": ["b", "c"]})
    project.build()
    shutil.copytree(
        project.folder, folder / "new", ignore=shutil.ignore_patterns("dist", "*.lock*")
    )
    other = Project(folder=folder / "new", document=project.document)
    data = other.folder / "b.data"
    content = bytearray(data.read_bytes())
    content[10] ^= 1
    data.write_bytes(content)
    other.section("execution_providers", "ref")["options"] = {"sdk_version": "1.0.1"}
    other.section("model_groups", "one")["partition"] = {"exclude": {"op_types": ["Tanh"]}}
    other.section("model_groups")["three"] = {"models": ["a"]}
    other.build()
    return project.folder, other.folder


def test_golden_files_that_one_of_two_did_not_ask_for_are_not_gone(tmp_path: Path) -> None:
    project = make(tmp_path / "old", {"one": ["a"]})
    project.build()
    shutil.copytree(project.folder / "dist", tmp_path / "without")
    project.build(golden=True)
    golden = project.folder / "dist"
    without = (tmp_path / "without").as_posix()
    why = f"golden files of 1 group: {without} was made without `--golden`"
    for pair in ((tmp_path / "without", golden), (golden, tmp_path / "without")):
        found = api.diff(*pair)
        assert (found.files, found.not_compared) == ((), (why,))
    shutil.copytree(golden, tmp_path / "copy")
    next((tmp_path / "copy").rglob("golden/*.npz")).unlink()
    (gone,) = api.diff(golden, tmp_path / "copy").files
    assert gone.new is None and "/golden/" in gone.file


def told(found: Comparison, area: str) -> list[str]:
    return [f"{each.where}: {each.what}" for each in found.differences if each.area == area]


def test_a_build_and_itself(built: tuple[Path, Path]) -> None:
    old, _ = built
    for one in (old / "dist", old / "dist" / "m", old / "dist" / "m.build.json"):
        found = api.diff(one, old / "m.lock.yaml")
        assert (found.same, found.differences, found.files) == (True, (), ())
        assert found.same_files == 5


def test_two_builds(built: tuple[Path, Path]) -> None:
    found = api.diff(*(each / "dist" for each in built))
    assert not found.same
    assert told(found, "source") == ["b.data: has other content of the same size, 12288 bytes"]
    settings = told(found, "setting")
    assert "default/three: is built now" in settings
    assert any("sdk_version" in each and '"1.0.1" is new' in each for each in settings)
    assert any(each.startswith("default/one: partition.exclude_op_types") for each in settings)
    partition = told(found, "partition")
    assert "default/one/a: partitions[0].nodes: 10 is now 9" in partition
    assert any("left to the default EP.tail (Tanh)" in each for each in partition)
    assert "default/one/a_ctx.onnx: node 'tail' (Tanh): is new" in told(found, "node")
    sdk = "attribute ep_sdk_version: 1.0.0 is now 1.0.1"
    assert any(each.endswith(sdk) for each in told(found, "attribute"))
    assert any("default/two/b_reference.bin: properties" in each for each in told(found, "binary"))
    files = {file.file: file for file in found.files}
    assert files["default/three/a_ctx.onnx"].old is None
    assert "that differ" in (files["default/two/b_reference.bin"].difference or "")
    assert found.not_compared == ()


def test_two_locks(built: tuple[Path, Path]) -> None:
    found = api.diff(*(each / "m.lock.yaml" for each in built))
    assert told(found, "source") and told(found, "setting")
    assert not told(found, "node") and not told(found, "partition")
    assert {file.file for file in found.files} == {
        file.file for file in api.diff(*(each / "dist" for each in built)).files
    }


def test_a_build_and_a_lock(built: tuple[Path, Path]) -> None:
    old, new = built
    found = api.diff(old / "dist" / "m", new / "m.lock.yaml")
    assert told(found, "source") and not told(found, "node")
    assert found.not_compared == (
        f"partitions: {(new / 'm.lock.yaml').as_posix()} has no report",
        f"nodes and attributes: the files of {(new / 'm.lock.yaml').as_posix()} are missing",
    )


def test_what_was_edited_after_the_build_shows(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Files are read from the disk, not taken from the report."""
    old, _ = built
    shutil.copytree(old / "dist", tmp_path / "dist")
    path = tmp_path / "dist" / "m" / "default" / "one" / "a_ctx.onnx"
    proto = onnx.load(path)
    proto.doc_string = "edited"
    path.write_bytes(proto.SerializeToString())
    found = api.diff(old / "dist", tmp_path / "dist")
    assert [file.file for file in found.files] == ["default/one/a_ctx.onnx"]
    assert told(found, "metadata") == ["default/one/a_ctx.onnx: doc_string:  is now edited"]


def test_folders_without_a_report(built: tuple[Path, Path], tmp_path: Path) -> None:
    for name, each in zip(("old", "new"), built, strict=True):
        shutil.copytree(each / "dist" / "m" / "default", tmp_path / name)
    found = api.diff(tmp_path / "old", tmp_path / "new")
    assert "one/a_ctx.onnx: node 'tail' (Tanh): is new" in told(found, "node")
    assert not told(found, "setting")


def test_the_command_line(built: tuple[Path, Path]) -> None:
    folder = built[0].parent
    run = epctx("diff", "old/dist", "new/dist", cwd=folder)
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert lines.index("source") < lines.index("file") < lines.index("node")
    assert "  default/three/a_ctx.onnx: is new, " in run.stdout
    assert "7 files of 7 differ, and " in lines[-1]
    same = epctx("diff", "old/dist", "old/m.lock.yaml", cwd=folder)
    assert same.returncode == 0
    assert same.stdout.endswith("nothing differs, 5 files compared\n")
    document = json.loads(
        epctx("diff", "old/dist", "new/dist", "--format", "json", cwd=folder).stdout
    )
    assert msgspec.convert(document, Comparison).differences


@pytest.mark.parametrize(
    ("name", "words", "error"),
    [
        ("nothing", "does not exist", UsageError),
        (".", "contains no build", UsageError),
        ("several", "has the builds of several manifests", UsageError),
        ("m.yaml", "is not a lock|has lock_version", LockError),
    ],
)
def test_what_cannot_be_compared(
    tmp_path: Path, name: str, words: str, error: type[Exception]
) -> None:
    (tmp_path / "several").mkdir()
    for each in ("a", "b"):
        (tmp_path / "several" / f"{each}.build.json").write_text("{}")
    (tmp_path / "m.yaml").write_text("name: m\n")
    with pytest.raises(error, match=words):
        api.diff(tmp_path / name, tmp_path / name)
