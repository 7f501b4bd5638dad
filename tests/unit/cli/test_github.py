"""Annotations: what GitHub's runner reads on stderr."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from epctx.cli.app import app
from epctx.worker import pool
from tests.kit.command_line import inside
from tests.kit.inline import Inline
from tests.kit.projects import Project, make


@pytest.fixture(autouse=True)
def _step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A step that runs below the root of the checkout."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path / "models")
    monkeypatch.setattr(pool, "Worker", Inline)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def annotations(result: Result) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("::")]


def broken(tmp_path: Path) -> None:
    text = "schema_version: 1\nname: m\nmodels: {}\nmodel_gruops: {}\n"
    (tmp_path / "models" / "m.yaml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("verb", ["validate", "plan", "build"])
def test_each_violation_is_at_its_line(tmp_path: Path, verb: str) -> None:
    broken(tmp_path)
    result = call(verb, "m.yaml")
    assert result.exit_code == 3
    found = annotations(result)
    assert len(found) >= 2
    assert all(a.startswith("::error file=models/m.yaml,line=") for a in found)
    (misspelt,) = (a for a in found if "model_gruops" in a and "line=4,col=1," in a)
    assert "%0A-> " in misspelt and "model_groups" in misspelt


def test_elsewhere_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS")
    broken(tmp_path)
    assert annotations(call("validate", "m.yaml")) == []


def test_a_manifest_that_is_not_there_is_of_no_file() -> None:
    (found,) = annotations(call("plan", "none.yaml"))
    assert found.startswith("::error title=epctx E0202::none.yaml: does not exist%0A-> ")


def test_a_group_that_fails_is_at_its_line(tmp_path: Path) -> None:
    made: Project = make(tmp_path / "models", {"good": ["a"], "bad": ["b"]})
    made.section("model_groups", "bad")["partition"] = {
        "exclude": {"op_types": ["Tanh"]},
        "require_coverage": 1.0,
    }
    made.write()
    lines = made.manifest.read_text(encoding="utf-8").splitlines()
    result = call("build", "m.yaml", "--keep-going")
    assert result.exit_code == 6
    (found,) = annotations(result)
    line = lines.index("  bad:") + 1
    assert found.startswith(
        f"::error file=models/m.yaml,line={line},col=3,title=epctx E0604::bad@default: "
    )
    assert "require_coverage asks for 100.0%25" in found, "a per cent sign begins an escape"


def test_an_output_that_cannot_be_written_is_of_no_line(tmp_path: Path) -> None:
    made = make(tmp_path / "models", {"g": ["a"]})
    (made.folder / "out").write_text("in the way", encoding="utf-8")
    result = call("build", "m.yaml", "--out", "out/inside")
    assert result.exit_code == 9
    assert len(annotations(result)) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", "a\u2028b\x1b[2K.yaml"),
        ("build", "a\u2028b\x1b[2K.yaml"),
        ("inspect", "a\u2028b\x1b[2K.onnx"),
        ("build", "--a\u2028b\x1b[2K"),
        ("pull", "oci://me:pa\u2028ss\x1b[2K@host/r", "x"),
        ("build", "m.yaml", "--on", "dask://me:pa\u2028\x1b[2K@host:1"),
        ("verify", "oci://me:pa@host/R\u2028\x1b[2K"),
    ],
)
def test_an_annotation_has_no_control_character_and_no_password(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "m.yaml").write_text("name: m", encoding="utf-8")
    ran = inside(*arguments, cwd=tmp_path, GITHUB_ACTIONS="true")
    told = [line for line in ran.stderr.split("\n") if line.startswith("::error")]
    assert told and not re.search("[\u2028\x1b]|me:pa", ran.stderr)
