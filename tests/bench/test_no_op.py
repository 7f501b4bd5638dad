"""A build that has nothing to do (design section 12), beside a bare script that just recompiles."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.measuring import HELP, NO_OP, RECOMPILED, Row, cpu, held, wall
from tests.bench.projects import BUILD, write_manifest, write_mlp
from tests.kit.command_line import PROGRAM

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
def test_nothing_changed_in_two_groups(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        write_mlp(tmp_path / f"{name}.onnx", 2, 64, seed)
    write_manifest(tmp_path, ["one", "two"], "ReferenceExecutionProvider")
    wall(BUILD, tmp_path)
    time.sleep(2.5)  # until what was just written may be believed unread
    wall(BUILD, tmp_path)
    median(NO_OP, lambda: cpu(BUILD, tmp_path))


def test_help(tmp_path: Path) -> None:
    median(HELP, lambda: wall([*PROGRAM, "--help"], tmp_path))


def median(row: Row, seconds: Callable[[], float]) -> None:
    """Hold the median of nine runs."""
    runs = [seconds() for _ in range(9)]
    held(row, statistics.median(runs), "the median of nine", pairs=runs)


@pytest.mark.needs("file systems that tell of each write")
def test_nothing_changed_in_fifty_models_of_five_gigabytes(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(50)]
    size = sum(
        write_mlp(tmp_path / f"{name}.onnx", 6, 2048, seed) for seed, name in enumerate(names)
    )
    assert size > 5_000_000_000
    write_manifest(tmp_path, names, "ReferenceExecutionProvider")

    first = wall(BUILD, tmp_path)
    time.sleep(2.5)  # until what was just written may be believed unread
    second = wall(BUILD, tmp_path)
    print(f"\n50 models, {size / 1e9:.1f} GB: first build {first:.1f} s, the next {second:.2f} s")
    begun = time.perf_counter()
    wall([sys.executable, "-c", BARE, *(f"{name}.onnx" for name in names)], tmp_path)
    again = time.perf_counter() - begun
    quick = min(wall(BUILD, tmp_path) for _ in range(2))
    held(RECOMPILED, quick / again, f"seconds: {quick:.2f}/{again:.1f}")
