"""A build that has nothing to do (design section 12), beside a bare script that just recompiles."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.bench.measuring import NO_OP, NO_OP_FULL, NO_OP_JSON, RECOMPILED, held, ratio, wall
from tests.bench.projects import BUILD, write_manifest, write_mlp

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


@pytest.mark.needs("file systems that tell of each write")
def test_nothing_changed_in_fifty_models_of_five_gigabytes(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(50)]
    size = sum(
        write_mlp(tmp_path / f"{name}.onnx", 6, 2048, seed) for seed, name in enumerate(names)
    )
    assert size > 5_000_000_000
    write_manifest(tmp_path, names, "ReferenceExecutionProvider")

    def imports() -> float:
        return wall([sys.executable, "-c", "import yaml, typer"], tmp_path)

    first = wall(BUILD, tmp_path)
    time.sleep(2.5)  # until what was just written may be believed unread
    second = wall(BUILD, tmp_path)
    print(f"\n50 models, {size / 1e9:.1f} GB: first build {first:.1f} s, the next {second:.2f} s")
    report = [*BUILD, "--format", "json"]
    wall(report, tmp_path)
    ratio(NO_OP_JSON, lambda: wall(report, tmp_path), imports, runs=5)
    # A build that tells all it does has no quick answer.
    ratio(NO_OP_FULL, lambda: wall([*BUILD, "-v"], tmp_path), imports, runs=5)
    begun = time.perf_counter()
    wall([sys.executable, "-c", BARE, *(f"{name}.onnx" for name in names)], tmp_path)
    again = time.perf_counter() - begun
    quick = min(wall(BUILD, tmp_path) for _ in range(2))
    held(RECOMPILED, quick / again, f"seconds: {quick:.2f}/{again:.1f}")
    ratio(NO_OP, lambda: wall(BUILD, tmp_path), imports, runs=9)
