"""`epctx validate`: what it prints, where, and its exit codes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epctx.cli.app import app
from epctx.commands.options import STARTER

pytestmark = pytest.mark.usefixtures("folder")
runner = CliRunner()


def test_validate_says_ok() -> None:
    result = runner.invoke(app, ["validate", "good.yaml"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "good.yaml: ok\n", "")


def test_what_is_ok_is_said_in_the_colours_that_a_log_is_to_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coloured = "\x1b[32mgood.yaml: ok\x1b[0m\n"
    assert runner.invoke(app, ["validate", "good.yaml", "--color", "always"]).stdout == coloured
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert runner.invoke(app, ["validate", "good.yaml"], color=True).stdout == coloured
    assert runner.invoke(app, ["validate", "good.yaml", "-q"]).stdout == ""


def test_validate_tells_every_violation_of_every_manifest() -> None:
    result = runner.invoke(app, ["validate", "bad.yaml", "good.yaml"])
    assert result.exit_code == 3
    assert result.stdout.splitlines() == [
        "error[E0304]: bad.yaml:2:1: nam: unknown key",
        '  -> did you mean "name"?',
        'error[E0309]: bad.yaml:4:29: model_groups.g.models[0]: there is no model "b"',
        "  -> choose one of: a",
        "good.yaml: ok",
    ]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none.yaml", ["none.yaml: does not exist", STARTER.otherwise]),
        (".", [".: is a folder", "name a file: bad.yaml, good.yaml"]),
    ],
)
def test_a_manifest_that_is_typed_and_not_there_is_a_wrong_command(
    name: str, told: list[str]
) -> None:
    result = runner.invoke(app, ["validate", "good.yaml", name])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [f"error[E0202]: {told[0]}", f"  -> {told[1]}"]


def test_validate_quietly_tells_only_what_is_wrong() -> None:
    result = runner.invoke(app, ["validate", "-q", "bad.yaml", "good.yaml"])
    assert result.exit_code == 3
    assert len(result.stdout.splitlines()) == 4


def test_validate_in_json() -> None:
    result = runner.invoke(app, ["validate", "--format", "json", "bad.yaml", "good.yaml"])
    assert (result.exit_code, result.stderr) == (3, "")
    bad, good = json.loads(result.stdout)
    assert good == {"manifest": "good.yaml", "ok": True, "violations": [], "warnings": []}
    assert bad["ok"] is False
    assert bad["violations"][0] == {
        "file": "bad.yaml",
        "line": 2,
        "column": 1,
        "path": "nam",
        "what": "unknown key",
        "remedy": 'did you mean "name"?',
        "code": "E0304",
    }


def test_validate_can_allow_outside(folder: Path) -> None:
    good = folder / "good.yaml"
    text = good.read_text(encoding="utf-8")
    good.write_text(text.replace("a.onnx", "../a.onnx"), encoding="utf-8")
    assert runner.invoke(app, ["validate", "good.yaml"]).exit_code == 3
    outside = ["validate", "good.yaml", "--allow-outside"]
    assert runner.invoke(app, [*outside, "--no-models"]).exit_code == 0
    assert runner.invoke(app, outside).exit_code == 4


def test_warnings_are_told_and_are_no_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = folder / "good.yaml"
    text = good.read_text(encoding="utf-8")
    good.write_text(text.replace("{a: ", "{b: {path: a.onnx}, a: "), encoding="utf-8")
    result = runner.invoke(app, ["validate", "good.yaml"])
    assert (result.exit_code, result.stdout.splitlines()) == (
        0,
        [
            "warning: good.yaml:3:10: models.b: is used by no model group",
            "  -> list it in `models` of a model group, or remove it",
            "good.yaml: ok, 1 warning",
        ],
    )
    assert runner.invoke(app, ["validate", "good.yaml", "-q"]).stdout == ""
    (told,) = json.loads(runner.invoke(app, ["validate", "good.yaml", "--format=json"]).stdout)
    assert (told["ok"], told["warnings"][0]["line"]) == (True, 3)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    annotated = runner.invoke(app, ["validate", "good.yaml"]).stderr
    assert annotated.startswith("::warning file=good.yaml,line=3,col=10,title=epctx::models.b: is")


def test_for_the_hook_files_that_are_no_manifest_are_passed_over(folder: Path) -> None:
    (folder / "other.yaml").write_text("schema_version: 1\nservices: {}\n", encoding="utf-8")
    assert runner.invoke(app, ["validate", "other.yaml"]).exit_code == 3
    result = runner.invoke(app, ["validate", "--if-manifest", "other.yaml", "good.yaml"])
    assert (result.exit_code, result.stdout) == (0, "good.yaml: ok\n")
    assert runner.invoke(app, ["validate", "--if-manifest", "other.yaml"]).exit_code == 0
    assert runner.invoke(app, ["validate", "--if-manifest", "bad.yaml"]).exit_code == 3
