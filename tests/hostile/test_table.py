"""Every row holds, the table says what happened, and what is checked of each row can fail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from epctx.errors import ModelError
from epctx.stages import load
from tests.hostile import project, running, table
from tests.hostile.every import ALL
from tests.hostile.table import How, Row

AGAIN = "if this is meant: python -m tests.hostile, and read the diff"


def sampled() -> Iterator[ParameterSet]:
    """Each row; `make test` runs the first of each kind, and of the others one in eight."""
    begun: set[tuple[str, How]] = set()
    for row in (each for each in ALL if each.possible):
        kind = row.kind, row.how
        yield pytest.param(row, id=row.id, marks=pytest.mark.wide(8) if kind in begun else ())
        begun.add(kind)


@pytest.mark.parametrize("row", list(sampled()))
def test_a_row_ends_as_the_table_says(row: Row, tmp_path: Path) -> None:
    said = running.carry_out(row, tmp_path)
    assert table.line(row, said) == table.read().get(row.id), AGAIN


def test_the_table_has_all_rows_and_no_other() -> None:
    assert table.read().keys() == {row.id for row in ALL}, AGAIN
    assert len(ALL) >= 200


EMPTY = Row(
    kind="test",
    name="empty file",
    make=lambda room: project.replace_model(room, b""),
    code=4,
    says="a.onnx: is empty",
)


def fails(row: Row, folder: Path, match: str) -> None:
    with pytest.raises(AssertionError, match=match):
        running.carry_out(row, folder)


def raising(error: Exception, files: Callable[[], object]) -> Callable[[object], object]:
    def run(source: object) -> object:
        files()
        raise error

    return run


SOUND = ModelError("a.onnx: is empty", remedy="none")


@pytest.mark.parametrize("place", ["dist/m/half", "other", "../outside/secret", "../temporary/x"])
def test_a_file_that_is_left_fails(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave() -> None:
        path = tmp_path / "project" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left")

    monkeypatch.setattr(load, "run", raising(SOUND, leave))
    fails(EMPTY, tmp_path, "left or changed")


def test_an_error_without_a_remedy_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def say(arguments: object, prog_name: str) -> None:
        print("error[E0403]: a.onnx: is empty", file=sys.stderr)
        raise SystemExit(4)

    monkeypatch.setattr(running, "app", say)
    fails(EMPTY, tmp_path, "no remedy")
