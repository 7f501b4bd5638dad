"""Twenty small CNNs on QNN, each in a group of its own: what epctx adds to each group."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.bench import measuring
from tests.bench.measuring import Row, cpu_and_wall, ratios
from tests.bench.projects import BARE_GROUP, BARE_GROUPS, write_cnn, write_manifest
from tests.kit.command_line import PROGRAM

pytestmark = [pytest.mark.bench, pytest.mark.needs("module onnxruntime_qnn")]

BUILD = [*PROGRAM, "build", "m.yaml", "--no-cache", "--jobs", "2"]
NAMES = [f"m{number}" for number in range(20)]


@pytest.mark.parametrize(
    ("rows", "options", "mode"),
    [
        ((measuring.CNNS_CPU, measuring.CNNS), [], "run"),
        ((measuring.CNNS_UNVERIFIED_CPU, measuring.CNNS_UNVERIFIED), ["--no-verify"], "compile"),
    ],
    ids=["with numbers", "unverified"],
)
def test_twenty_small_cnns_cost_little_more_than_a_bare_script(
    tmp_path: Path, rows: tuple[Row, Row], options: list[str], mode: str
) -> None:
    for seed, name in enumerate(NAMES):
        write_cnn(tmp_path / f"{name}.onnx", seed)
    write_manifest(tmp_path, NAMES, "QNNExecutionProvider", ', options: {soc_model: "60"}')

    def ours() -> tuple[float, float]:
        shutil.rmtree(tmp_path / "dist", ignore_errors=True)
        return cpu_and_wall([*BUILD, *options], tmp_path)

    def bare() -> tuple[float, float]:
        for name in NAMES:
            shutil.rmtree(tmp_path / f"bare-{name}", ignore_errors=True)
            (tmp_path / f"bare-{name}").mkdir()
        script = [sys.executable, "-c", BARE_GROUPS, BARE_GROUP, mode, *NAMES]
        return cpu_and_wall(script, tmp_path)

    ratios(rows, ours, bare, runs=5)
