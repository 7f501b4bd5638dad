"""What a build leaves works where it is copied, without its sources."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import onnx

from tests.kit.building import mlp
from tests.kit.command_line import epctx

MANIFEST = """\
schema_version: 1
name: m
models:
  one: {path: one.onnx}
  eight: {path: eight.onnx}
  mixed: {path: mixed.onnx}
execution_providers:
  reference: {provider: ReferenceExecutionProvider}
  matmuls: {provider: ReferenceExecutionProvider, options: {ops: [MatMul, Add], source: matmuls}}
model_groups:
  shared:
    models: [one, eight]
    execution_providers: [reference]
    sharing_groups: {weights: [one, eight]}
  parts:
    models: [mixed]
    execution_providers: [matmuls]
    external_initializers: {file: mixed.data}
"""


def test_a_dumped_group_works_elsewhere_without_its_sources(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    onnx.save(mlp(batch=1), sources / "one.onnx")
    onnx.save(mlp(batch=8), sources / "eight.onnx")
    onnx.save(mlp(tail="Softmax"), sources / "mixed.onnx")
    (sources / "m.yaml").write_text(MANIFEST, encoding="utf-8")
    said("build", "m.yaml", cwd=sources)
    for group in ("shared", "parts"):
        shutil.copytree(sources / "dist" / "m" / "default" / group, tmp_path / "else where" / group)
    shutil.rmtree(sources)
    verified = json.loads(said("verify", "else where", "--format", "json", cwd=tmp_path))
    outcomes = {f["outcome"] for folder in verified["folders"] for f in folder["findings"]}
    assert "fail" not in outcomes
    assert "pass" in outcomes
    code = (
        "import sys, numpy as np\n"
        "from epctx.runtime import InferenceSession\n"
        "reference = ('ReferenceExecutionProvider', {'source': sys.argv[2]})\n"
        "with InferenceSession(sys.argv[1], providers=[reference]) as session:\n"
        "    (x,) = session.get_inputs()\n"
        "    (y,) = session.run(None, {x.name: np.ones(x.shape, np.float32)})\n"
        "    print(y.shape, bool(np.isfinite(y).all() and y.any()))\n"
    )
    for model, shape in {
        "shared/one_ctx.onnx": "(1, 64)",
        "shared/eight_ctx.onnx": "(8, 64)",
        "parts/mixed_ctx.onnx": "(1, 64)",
    }.items():
        source = "matmuls" if model.startswith("parts") else "reference"
        command = [sys.executable, "-c", code, str(tmp_path / "else where" / model), source]
        run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert run.stdout.strip() == f"{shape} True", run.stderr


def said(*arguments: str, cwd: Path) -> str:
    run = epctx(*arguments, cwd=cwd)
    assert run.returncode == 0, run.stderr
    return run.stdout
