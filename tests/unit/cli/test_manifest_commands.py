"""`epctx validate`, `schema` and `init`: what they print, where, and their exit codes."""

import json
from pathlib import Path

import onnx
import pytest
import typer
from onnx import TensorProto, helper
from typer.testing import CliRunner

from epctx.cli.init import init
from epctx.cli.render import command
from epctx.cli.schema import schema
from epctx.cli.validate import validate
from epctx.parsing import schema as schemas

GOOD = """\
schema_version: 1
name: m
models: {a: {path: a.onnx}}
model_groups: {g: {models: [a], execution_providers: []}}
"""

app = typer.Typer()
for function in (validate, schema, init):
    app.command(function.__name__)(command(function))
runner = CliRunner()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD, encoding="utf-8")
    bad = GOOD.replace("[a], ex", "[b], ex").replace("name: m", "nam: m")
    (tmp_path / "bad.yaml").write_text(bad, encoding="utf-8")
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch"])
    other = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [other])
    onnx.save(helper.make_model(graph), tmp_path / "a.onnx")
    return tmp_path


def test_validate_says_ok() -> None:
    result = runner.invoke(app, ["validate", "good.yaml"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "good.yaml: ok\n", "")


def test_validate_tells_every_violation_of_every_manifest() -> None:
    result = runner.invoke(app, ["validate", "bad.yaml", "good.yaml", "none.yaml"])
    assert result.exit_code == 3
    assert result.stdout.splitlines() == [
        "bad.yaml:2:1: nam: unknown key",
        '  -> did you mean "name"?',
        'bad.yaml:4:29: model_groups.g.models[0]: there is no model "b"',
        "  -> choose one of: a",
        "good.yaml: ok",
        "none.yaml: there is no such file",
        "  -> check the path, or write a starter manifest with `epctx init`",
    ]


def test_validate_quietly_tells_only_what_is_wrong() -> None:
    result = runner.invoke(app, ["validate", "-q", "bad.yaml", "good.yaml"])
    assert result.exit_code == 3
    assert len(result.stdout.splitlines()) == 4


def test_validate_in_json() -> None:
    result = runner.invoke(app, ["validate", "--format", "json", "bad.yaml", "good.yaml"])
    assert (result.exit_code, result.stderr) == (3, "")
    bad, good = json.loads(result.stdout)
    assert good == {"manifest": "good.yaml", "ok": True, "violations": []}
    assert bad["ok"] is False
    assert bad["violations"][0] == {
        "file": "bad.yaml",
        "line": 2,
        "column": 1,
        "path": "nam",
        "what": "unknown key",
        "remedy": 'did you mean "name"?',
    }


def test_validate_can_allow_outside(folder: Path) -> None:
    (folder / "good.yaml").write_text(GOOD.replace("a.onnx", "../a.onnx"), encoding="utf-8")
    assert runner.invoke(app, ["validate", "good.yaml"]).exit_code == 3
    assert runner.invoke(app, ["validate", "good.yaml", "--allow-outside"]).exit_code == 0


def test_schema_prints_it_and_nothing_else() -> None:
    result = runner.invoke(app, ["schema", "providers/ReferenceExecutionProvider"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == schemas.text("providers/ReferenceExecutionProvider")
    assert json.loads(result.stdout)["title"] == "Options of ReferenceExecutionProvider"


def test_schema_lists_what_there_is() -> None:
    result = runner.invoke(app, ["schema"])
    assert result.stdout.splitlines() == schemas.names()
    listed = runner.invoke(app, ["schema", "--format", "json"])
    assert json.loads(listed.stdout) == schemas.names()


def test_schema_helps_with_a_misspelt_name() -> None:
    result = runner.invoke(app, ["schema", "manifst"])
    assert result.exit_code == 2
    assert 'did you mean "manifest"?' in result.stderr


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
        (["none.onnx"], 4, "none.onnx"),
    ],
)
def test_init_refuses(arguments: list[str], code: int, told: str) -> None:
    result = runner.invoke(app, ["init", "a.onnx", *arguments])
    assert result.exit_code == code
    assert told in result.stderr
