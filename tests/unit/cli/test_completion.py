"""What a shell completes: as the shell asks it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MANIFEST = """\
schema_version: 1
name: m
models: {a: {path: a.onnx}}
model_groups:
  small: {models: [a], execution_providers: []}
  large: {models: [a], execution_providers: []}
"""


def completed(line: str, folder: Path) -> list[str]:
    variables = {
        **os.environ,
        "_EPCTX_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    ran = subprocess.run(
        [sys.executable, "-m", "epctx"],
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("epctx bu", ["build"]),
        ("epctx cache g", ["gc"]),
        ("epctx build m.yaml --keep", ["--keep-going"]),
        ("epctx schema l", ["lock"]),
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
def test_completion(tmp_path: Path, line: str, words: list[str]) -> None:
    (tmp_path / "m.yaml").write_text(MANIFEST, encoding="utf-8")
    targets = f"{MANIFEST}targets: {{one: {{}}, two: {{}}}}\n"
    (tmp_path / "targets.yaml").write_text(targets, encoding="utf-8")
    assert completed(line, tmp_path) == words
