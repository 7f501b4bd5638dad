"""Folders of any depth are listed; what is a link is told, and not entered."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epctx.cli.app import app
from epctx.files import listing


def test_everything_is_listed_each_folder_sorted(tmp_path: Path) -> None:
    for name in ("b/y", "b/x", "a/z/w"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in listing.below(tmp_path)]
    assert found == ["a", "b", "a/z", "a/z/w", "b/x", "b/y"]
    shallow = listing.below(tmp_path, into=lambda path: path.name != "a")
    assert [path.name for path in shallow] == ["a", "b", "x", "y"]


def nested(folder: Path, count: int) -> Iterator[None]:
    """Folders in each other, removed from within: neither `rmtree` nor a path reaches so deep."""
    with contextlib.chdir(folder):
        for _ in range(count):
            os.mkdir("dd")  # noqa: PTH102 - no path is as long
            os.chdir("dd")
    yield
    with contextlib.chdir(folder):
        depth = 0
        while os.path.isdir("dd"):  # noqa: PTH112 - likewise
            os.chdir("dd")
            depth += 1
        for _ in range(depth):
            os.chdir("..")
            os.rmdir("dd")  # noqa: PTH106 - likewise


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    for _ in nested(tmp_path, 1100):
        yield tmp_path


@pytest.fixture
def deeper(tmp_path: Path) -> Iterator[Path]:
    """Beyond what the system takes as a path."""
    for _ in nested(tmp_path, 2500):
        yield tmp_path


@pytest.mark.needs("POSIX", "paths are shorter there")
@pytest.mark.parametrize("command", [["verify"], ["diff", "."]])
def test_commands_end_in_words(
    command: list[str], deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(deep)
    assert len(list(listing.below(deep))) == 1100
    ended = CliRunner().invoke(app, [*command, "."])
    assert ended.exit_code == 2
    assert "has nothing to verify" in ended.output or "contains no build" in ended.output


@pytest.mark.needs("POSIX", "paths are shorter there")
@pytest.mark.parametrize("command", [["verify"], ["diff", "."]])
def test_what_is_beyond_a_path_is_told(
    command: list[str], deeper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(deeper)
    ended = CliRunner().invoke(app, [*command, "."])
    assert ended.exit_code == 2
    assert "cannot be read: File name too long" in ended.output
