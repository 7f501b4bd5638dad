"""Paths that are typed: what is not there is exit 2, in every command and option."""

import inspect
from pathlib import Path
from typing import Annotated

import pytest
from typer.testing import CliRunner

from epctx.cli import paths
from epctx.cli.app import app
from epctx.commands.options import Existing, Written
from epctx.errors import UsageError

runner = CliRunner()
READ = [
    *(f"{verb} none.yaml" for verb in ("validate", "plan", "build", "package", "reproduce")),
    *("report none.yaml", "report none.json", "inspect none.onnx", "init none.onnx"),
    *("verify none", "verify . --lock none.yaml", "verify . --manifest none.yaml"),
    *("diff none .", "diff . none", "run none.onnx", "run good.yaml --input none.npz"),
    "cache gc none.lock.yaml",
]
WRITTEN = [
    "verify . --junit none/a.xml",
    "report good.yaml --out none/a.html",
    "run a.onnx --save none/a.npz",
    "init a.onnx --out none/m.yaml",
]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", READ)
def test_what_is_read_must_be_there(command: str) -> None:
    result = runner.invoke(app, command.split())
    assert result.exit_code == 2
    assert "does not exist\n  -> " in result.stderr


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", WRITTEN)
def test_the_folder_of_what_is_written_must_be_there(command: str) -> None:
    result = runner.invoke(app, command.split())
    assert result.exit_code == 2
    assert "cannot be written: there is no folder none\n  -> " in result.stderr


def parameter(annotation: object) -> list[inspect.Parameter]:
    return [inspect.Parameter("a", inspect.Parameter.KEYWORD_ONLY, annotation=annotation)]


def test_the_nearest_file_is_named_or_what_else_to_do(folder: Path) -> None:
    mark = parameter(Annotated[Path, Existing(otherwise="make one")])
    with pytest.raises(UsageError) as caught:
        paths.require(mark, {"a": Path("god.yaml")}, print)
    assert caught.value.remedy == "did you mean 'good.yaml'?"
    with pytest.raises(UsageError) as caught:
        paths.require(mark, {"a": Path("zzz.txt")}, print)
    assert caught.value.remedy == "make one"
    paths.require(mark, {"a": folder / "good.yaml"}, print)
    paths.require(mark, {"a": None}, print)


def test_a_file_in_the_place_of_a_folder_and_a_name_that_is_too_long_are_not_there(
    folder: Path,
) -> None:
    for path in (Path("good.yaml/a"), Path("a" * 5000)):
        with pytest.raises(UsageError):
            paths.require(parameter(Annotated[Path, Existing()]), {"a": path}, print)
    written = parameter(Annotated[Path, Written()])
    with pytest.raises(UsageError):
        paths.require(written, {"a": Path("none/a")}, print)
    paths.require(written, {"a": Path("new.txt")}, print)


@pytest.mark.needs("links")
def test_a_link_that_leads_nowhere_is_told_as_one(folder: Path) -> None:
    (folder / "link.yaml").symlink_to("none.yaml")
    with pytest.raises(UsageError, match="is a broken link to none"):
        paths.require(parameter(Annotated[Path, Existing()]), {"a": Path("link.yaml")}, print)
