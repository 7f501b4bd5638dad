"""`epctx init`: what it prints, where, and its exit codes."""

import json

import pytest
from typer.testing import CliRunner

from epctx.cli.app import app

pytestmark = pytest.mark.usefixtures("folder")
runner = CliRunner()


def test_init_writes_a_manifest_that_validates() -> None:
    result = runner.invoke(
        app, ["init", "a.onnx", "a.onnx", "--share", "--option", "source=npu", "--out", "m.yaml"]
    )
    assert (result.exit_code, result.stdout) == (0, "wrote m.yaml\n")
    assert "next: epctx build m.yaml" in result.stderr
    assert runner.invoke(app, ["validate", "m.yaml"]).exit_code == 0


def test_init_in_json() -> None:
    result = runner.invoke(app, ["init", "a.onnx", "--format", "json"])
    assert json.loads(result.stdout) == {"manifest": "epctx.yaml"}


def test_init_needs_force_to_replace() -> None:
    again = ["init", "a.onnx", "--out", "good.yaml"]
    result = runner.invoke(app, again)
    assert result.exit_code == 2
    assert "--force" in result.stderr
    assert runner.invoke(app, [*again, "--force"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--option", "source"], 2, "write --option KEY=VALUE"),
        (["--option", "=x"], 2, "write --option KEY=VALUE"),
        (["--option", "sorce=x"], 3, 'did you mean "source"?'),
        (["--provider", "QNN"], 3, 'did you mean "QNNExecutionProvider"?'),
        (["--share"], 2, "two models"),
        (["none.onnx"], 2, "none.onnx"),
    ],
)
def test_init_refuses(arguments: list[str], code: int, told: str) -> None:
    result = runner.invoke(app, ["init", "a.onnx", *arguments])
    assert result.exit_code == code
    assert told in result.stderr
