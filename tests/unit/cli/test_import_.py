"""`epctx import ep-weight-sharing`: its words, in quotation marks, whatever they begin with."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from epctx.cli.app import app
from tests.kit.building import mlp

runner = CliRunner()
IMPORT = ("import", "ep-weight-sharing")


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(mlp(), "a.onnx")


@pytest.mark.parametrize(
    "line", ["-i soc_model|60 a.onnx", "ep_weight_sharing_ctx_gen -e qnn a.onnx", "a.onnx"]
)
def test_it_writes_a_manifest_that_validates(line: str) -> None:
    result = runner.invoke(app, [*IMPORT, line, "-o", "m.yaml", "-v"])
    assert (result.exit_code, result.stdout) == (0, "wrote m.yaml\n")
    assert runner.invoke(app, ["validate", "m.yaml"]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["-e", "qnn", "a.onnx"], 2, "no such option: -e"),
        (["-e qnn -z a.onnx"], 2, "there is no flag -z"),
        (["a.onnx", "-o", "no/m.yaml"], 2, "there is no folder no"),
        (['-i "sco|60" a.onnx'], 3, "-i sco: unknown option"),
    ],
)
def test_what_is_wrong_is_told(words: list[str], code: int, told: str) -> None:
    result = runner.invoke(app, [*IMPORT, *words])
    assert result.exit_code == code and told in result.stderr


@pytest.mark.needs("links")
def test_it_says_that_a_linked_model_needs_allow_outside(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "b.onnx").symlink_to(tmp_path / "a.onnx")
    line, manifest = "-i soc_model|60 links/b.onnx", "links/m.yaml"
    result = runner.invoke(app, [*IMPORT, line, "-o", manifest])
    assert (result.exit_code, result.stdout) == (0, f"wrote {manifest}\n")
    assert "a model is a link" in result.stderr and "--allow-outside" in result.stderr
    assert runner.invoke(app, ["validate", manifest]).exit_code == 3
    assert runner.invoke(app, ["validate", manifest, "--allow-outside"]).exit_code == 0
