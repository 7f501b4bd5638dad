"""`epctx plan --partition`: who takes which node, and nothing is built."""

import io
import json
import subprocess
from pathlib import Path

import onnx
import pytest
from rich.console import Console

from epctx.cli import plan as cli_plan
from epctx.commands.plan import GroupPreview
from epctx.stages.report import ModelReport, PartitionReport
from tests.kit.building import mlp
from tests.kit.command_line import epctx

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
    return epctx("plan", "m.yaml", "--partition", *arguments, cwd=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(mlp(layers=2), tmp_path / "mlp.onnx")
    (tmp_path / "m.yaml").write_text(MANIFEST % "relu1", encoding="utf-8")
    return tmp_path


def test_every_node_left_to_the_default_ep_has_its_reason(folder: Path) -> None:
    shown = plan(folder, "-v")
    assert shown.returncode == 0, shown.stderr
    told = " ".join(shown.stdout.split())
    assert "1 relu1 Relu node 5 reference excluded by manifest" in told
    assert "1 mm0 MatMul node 0 reference option ops does not name it" in told
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


def test_what_an_ep_keeps_that_cannot_be_asked_is_not_promised() -> None:
    """No such EP is here: those built into other onnxruntimes, and plugins that nobody knows."""
    part = PartitionReport(provider="trt", nodes=3, inputs=("x",), outputs=("y",))
    model = ModelReport(name="m", passes=(), nodes=3, coverage=1.0, partitions=(part,), declined=())
    preview = GroupPreview(target="default", group="g", models=(model,), silent=("trt",))
    console = Console(width=200, file=io.StringIO())
    console.print(cli_plan._partitions(preview))
    assert isinstance(console.file, io.StringIO)
    assert "trt: 3 nodes, offered (the EP decides in the compile), x -> y" in (
        console.file.getvalue()
    )
