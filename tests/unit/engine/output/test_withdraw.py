"""What was released of something else goes before anything is published; what was edited stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.errors import StorageError
from tests.kit.projects import Project, make


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
    assert released.notices() == [f"{name} was of what was published before: it is removed"]


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
    assert notice == f"nothing tells that {name} is of what is published: it is left"
