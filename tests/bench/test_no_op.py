"""A build that has nothing to do (design section 12), beside a bare script that just recompiles."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench.measuring import ratio, wall
from tests.bench.test_builds import write_manifest, write_mlp

pytestmark = pytest.mark.bench

BARE = """\
import sys
import onnxruntime as ort
for name in sys.argv[1:]:
    options = ort.SessionOptions()
    options.optimized_model_filepath = f"bare-{name}"
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    ort.InferenceSession(name, options, providers=["CPUExecutionProvider"])
"""


def test_nothing_changed_in_fifty_models_of_five_gigabytes(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(50)]
    size = sum(
        write_mlp(tmp_path / f"{name}.onnx", 6, 2048, seed) for seed, name in enumerate(names)
    )
    assert size > 5_000_000_000
    write_manifest(tmp_path, names, "ReferenceExecutionProvider")
    build = [sys.executable, "-m", "epctx", "build", "m.yaml", "--no-verify"]

    def imports() -> float:
        return wall([sys.executable, "-c", "import yaml, typer"], tmp_path)

    first = wall(build, tmp_path)
    time.sleep(2.5)  # until what was just written may be believed unread
    second = wall(build, tmp_path)
    print(f"\n50 models, {size / 1e9:.1f} GB: first build {first:.1f} s, the next {second:.2f} s")
    name = "nothing changed, 50 models, 5 GB / python -c 'import yaml, typer'"
    found = ratio(name, 4.0, lambda: wall(build, tmp_path), imports, runs=9)
    looking = [*build, "--format", "json"]
    ratio("the same, every key made anew", 4.0, lambda: wall(looking, tmp_path), imports, runs=9)
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", BARE, *(f"{n}.onnx" for n in names)], cwd=tmp_path)
    print(f"a bare script that compiles all again: {time.perf_counter() - begun:.1f} s")
    assert found <= 4.0
