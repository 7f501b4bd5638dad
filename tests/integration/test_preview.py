"""`epctx plan --partition`: who takes which node, and nothing is built."""

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.building import mlp

MANIFEST = """\
schema_version: 1
name: m
models: {mlp: {path: mlp.onnx}}
execution_providers:
  adds: {provider: ReferenceExecutionProvider, options: {ops: [Add, Relu]}}
model_groups:
  g:
    models: [mlp]
    execution_providers: [adds]
    partition: {exclude: {nodes: [%s]}, require_coverage: 1.0}
"""


def plan(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "epctx", "plan", "m.yaml", "--partition", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(mlp(layers=2), tmp_path / "mlp.onnx")
    (tmp_path / "m.yaml").write_text(MANIFEST % "relu1", encoding="utf-8")
    return tmp_path


def test_every_node_left_to_the_default_ep_has_its_reason(folder: Path) -> None:
    shown = plan(folder, "-v")
    assert shown.returncode == 0, shown.stderr
    assert "relu1 (Relu): reference: excluded by manifest" in shown.stdout
    assert "mm0 (MatMul): reference: option ops does not name it" in shown.stdout
    (group,) = json.loads(plan(folder, "--format", "json").stdout)
    (model,) = group["models"]
    assert model["nodes"] == 7
    assert sum(part["nodes"] for part in model["partitions"]) == 3
    assert len(model["declined"]) == 4
    assert sorted(p.name for p in folder.iterdir()) == ["m.yaml", "mlp.onnx"]


def test_a_misspelt_exclude_is_an_error_before_anything_is_compiled(folder: Path) -> None:
    (folder / "m.yaml").write_text(MANIFEST % "relu9", encoding="utf-8")
    shown = plan(folder)
    assert shown.returncode == 3
    assert "relu9" in shown.stderr
    assert "did you mean" in shown.stderr
