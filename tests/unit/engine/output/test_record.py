"""Record of the output folder, and removal of stale release files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from epctx.engine.output import record
from epctx.engine.output.place import OutputPaths
from epctx.errors import StorageError, UsageError
from tests.kit.projects import Project, make


def manifest(path: Path, name: str = "m", more: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"schema_version: 1\nname: {name}\n{more}", encoding="utf-8")
    return path


def place(out: Path, name: str = "m") -> OutputPaths:
    out.mkdir(parents=True, exist_ok=True)
    return OutputPaths(out=out, name=name)


@pytest.fixture
def built(tmp_path: Path) -> tuple[Path, OutputPaths]:
    """A manifest whose outputs are there."""
    path, outputs = manifest(tmp_path / "p" / "m.yaml"), place(tmp_path / "p" / "dist")
    record.refuse_another_manifest(outputs, path)
    record.write(outputs, path, {}, {})
    return path, outputs


def test_another_of_the_same_name_is_refused_by_name(built: tuple[Path, OutputPaths]) -> None:
    path, outputs = built
    other = manifest(path.with_name("other.yaml"), more="# another\n")
    with pytest.raises(UsageError, match=r"the name of another manifest, .*m\.yaml") as caught:
        record.refuse_another_manifest(outputs, other)
    assert "another `name`" in caught.value.remedy
    assert record.read(outputs).manifest == "../m.yaml"


def test_of_a_name_in_another_case_it_is_refused_where_folders_are_one(
    built: tuple[Path, OutputPaths],
) -> None:
    path, outputs = built
    other = manifest(path.with_name("other.yaml"), "M")
    with pytest.raises(UsageError):
        record.refuse_another_manifest(OutputPaths(out=outputs.out, name="m"), other)


def test_one_that_was_moved_or_renamed_is_no_other(built: tuple[Path, OutputPaths]) -> None:
    path, outputs = built
    moved = path.rename(path.with_name("renamed.yaml"))
    record.refuse_another_manifest(outputs, moved)
    record.write(outputs, moved, {}, {})
    assert record.read(outputs).manifest == "../renamed.yaml"


def test_a_tree_that_was_copied_or_moved_is_as_it_was(
    built: tuple[Path, OutputPaths], tmp_path: Path
) -> None:
    """A checkout elsewhere, its `dist` out of the cache of a CI system."""
    path, _ = built
    copy = Path(shutil.copytree(path.parent, tmp_path / "elsewhere" / "deep"))
    manifest(copy / "m.yaml", more="# edited in the copy\n")
    record.refuse_another_manifest(OutputPaths(out=copy / "dist", name="m"), copy / "m.yaml")


def test_outputs_alone_are_of_no_manifest(built: tuple[Path, OutputPaths], tmp_path: Path) -> None:
    _, outputs = built
    copy = Path(shutil.copytree(outputs.out, tmp_path / "alone" / "dist"))
    other = manifest(tmp_path / "x" / "other.yaml", more="# another\n")
    record.refuse_another_manifest(OutputPaths(out=copy, name="m"), other)


@pytest.mark.parametrize("now", ["name: another\n", "", "{", "name: [m]\n", "- m\n"])
def test_one_that_has_another_name_now_is_in_nobodys_way(
    built: tuple[Path, OutputPaths], now: str
) -> None:
    path, outputs = built
    path.write_text(now, encoding="utf-8")
    other = manifest(path.with_name("other.yaml"), more="# another\n")
    record.refuse_another_manifest(outputs, other)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"manifest": 1}', b'{"manifest": ""}'])
def test_a_record_that_cannot_be_read_says_nothing(
    built: tuple[Path, OutputPaths], content: bytes
) -> None:
    path, outputs = built
    outputs.record.write_bytes(content)
    record.refuse_another_manifest(outputs, manifest(path.with_name("other.yaml"), more="#\n"))
    assert record.read(outputs).released == {}


@pytest.mark.needs("POSIX", "no pipes")
def test_a_record_that_names_a_pipe_or_a_folder_waits_for_nothing(
    built: tuple[Path, OutputPaths],
) -> None:
    path, outputs = built
    other = manifest(path.with_name("other.yaml"))
    os.mkfifo(path.with_name("pipe"))
    for name in ("pipe", "."):
        record.write(outputs, path.parent / name, {}, {})
        record.refuse_another_manifest(outputs, other)


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project that was released, and then edited."""
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "cache"))
    made = make(tmp_path / "p", {"g": ["a"]}, verify={"numbers": "off"})
    made.build(archive=True)
    made.edit("a", lambda model: setattr(model.graph.node[-1], "op_type", "Sigmoid"))
    return made


def archives(project: Project) -> list[str]:
    return [path.name for path in (project.folder / "dist").glob("*.tar")]


def test_an_archive_of_something_else_is_removed_and_told(released: Project) -> None:
    (name,) = archives(released)
    released.build()
    assert archives(released) == []
    assert released.notices() == [f"removed {name}, which belonged to earlier outputs"]


def test_one_that_somebody_wrote_to_is_left_and_nothing_is_published(released: Project) -> None:
    (name,) = archives(released)
    archive = released.folder / "dist" / name
    archive.write_bytes(b"mine")
    before = released.files()
    with pytest.raises(StorageError, match=name):
        released.build()
    assert archive.read_bytes() == b"mine" and released.files() == before


def test_one_that_nothing_tells_of_is_left_and_told(released: Project) -> None:
    (name,) = archives(released)
    (released.folder / "dist" / ".m.record.json").unlink()
    released.build()
    assert archives(released) == [name]
    (notice,) = [each for each in released.notices() if name in each]
    assert notice == f"kept {name}, which may not belong to these outputs: no build has recorded it"
