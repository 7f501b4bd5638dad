"""What a shell completes: as the shell asks it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from epctx.cli.app import app
from tests.kit.command_line import epctx

MANIFEST = """\
schema_version: 1
name: m
models: {a: {path: a.onnx}}
model_groups:
  small: {models: [a], execution_providers: []}
  large: {models: [a], execution_providers: []}
"""


def asked(line: str) -> dict[str, str]:
    """The variables by which bash asks for completions of a line."""
    return {
        "_EPCTX_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }


def completed(line: str) -> list[str]:
    ran = CliRunner().invoke(app, prog_name="epctx", env=asked(line))
    assert (ran.exit_code, ran.stderr) == (0, "")
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("epctx bu", ["build"]),
        ("epctx cache g", ["gc"]),
        ("epctx build m.yaml --keep", ["--keep-going"]),
        ("epctx schema l", ["lock"]),
        ("epctx explain E13", ["E1300"]),
        ("epctx init a.onnx --provider QNN", ["QNNExecutionProvider"]),
        ("epctx init a.onnx --provider QNNExecutionProvider --option soc", ["soc_model="]),
        ("epctx init a.onnx --provider NoneExecutionProvider --option soc", []),
        ("epctx run a.onnx --provider Open", ["OpenVINOExecutionProvider"]),
        ("epctx build m.yaml --only s", ["small"]),
        ("epctx build targets.yaml --only large@", ["large@one", "large@two"]),
        ("epctx reproduce m.yaml --vary ti", ["time-zone", "time"]),
        ("epctx plan none.yaml --only s", []),
        ("epctx plan --only s", []),
    ],
)
def test_completion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(MANIFEST, encoding="utf-8")
    targets = f"{MANIFEST}targets: {{one: {{}}, two: {{}}}}\n"
    (tmp_path / "targets.yaml").write_text(targets, encoding="utf-8")
    assert completed(line) == words


def test_a_shell_asks_the_command_itself(tmp_path: Path) -> None:
    """In a process of its own, as it does at each press of the key."""
    ran = epctx(cwd=tmp_path, **asked("epctx bu"))
    assert (ran.returncode, ran.stdout.split(), ran.stderr) == (0, ["build"], "")
