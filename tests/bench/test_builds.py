"""Builds against what a user would run without epctx (design section 12). Ratios, side by side."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.bench.measuring import (
    JOBS,
    LARGE,
    MEMORY,
    QNN_48,
    QNN_160,
    Row,
    anonymous_megabytes,
    held,
    ratio,
    wall,
)
from tests.bench.projects import BARE_QNN, BUILD, write_manifest, write_mlp

pytestmark = pytest.mark.bench
SIDE_BY_SIDE = """\
import subprocess, sys
script, *names = sys.argv[1:]
running = [
    subprocess.Popen([sys.executable, "-c", script, f"{name}.onnx", f"bare-{name}/m_ctx.onnx"])
    for name in names
]
sys.exit(max(process.wait() for process in running))
"""
"""Runs a script once for each model, all of them at the same time."""


def epctx(folder: Path, *arguments: str) -> float:
    """A build from nothing."""
    shutil.rmtree(folder / "dist", ignore_errors=True)
    return wall([*BUILD, *arguments], folder)


@pytest.mark.needs("module onnxruntime_qnn")
@pytest.mark.parametrize(("layers", "row"), [(48, QNN_48), (160, QNN_160)])
def test_a_cold_qnn_build_against_a_bare_script(tmp_path: Path, layers: int, row: Row) -> None:
    write_mlp(tmp_path / "mlp.onnx", layers, 1024)
    write_manifest(tmp_path, ["mlp"], "QNNExecutionProvider", ', options: {soc_model: "60"}')

    def bare() -> float:
        out = tmp_path / "bare"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        return wall([sys.executable, "-c", BARE_QNN, "mlp.onnx", "bare/mlp_ctx.onnx"], tmp_path)

    ratio(row, lambda: epctx(tmp_path, "--no-cache"), bare, runs=5)


def test_two_gigabytes_through_the_reference_ep_against_cp_and_sha256sum(tmp_path: Path) -> None:
    size = write_mlp(tmp_path / "large.onnx", 8, 8192)
    assert size > 2_000_000_000
    write_manifest(tmp_path, ["large"], "ReferenceExecutionProvider")

    def copy() -> float:
        (tmp_path / "copy.data").unlink(missing_ok=True)
        return wall(["cp", "large.data", "copy.data"], tmp_path) + wall(
            ["sha256sum", "copy.data"], tmp_path
        )

    ratio(LARGE, lambda: epctx(tmp_path, "--no-cache"), copy, runs=3)


@pytest.mark.needs("Linux", "only Linux tells it")
def test_two_gigabytes_through_the_reference_ep_need_little_memory(tmp_path: Path) -> None:
    write_mlp(tmp_path / "large.onnx", 8, 8192)
    write_manifest(tmp_path, ["large"], "ReferenceExecutionProvider")
    most = anonymous_megabytes([*BUILD, "--no-cache"], tmp_path)
    held(MEMORY, most, "anonymous megabytes of all processes together")


@pytest.mark.needs("module onnxruntime_qnn")
def test_two_groups_with_two_jobs_against_two_scripts_side_by_side(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        write_mlp(tmp_path / f"{name}.onnx", 48, 1024, seed)
    write_manifest(tmp_path, ["one", "two"], "QNNExecutionProvider", ', options: {soc_model: "60"}')

    def bare() -> float:
        for name in ("one", "two"):
            shutil.rmtree(tmp_path / f"bare-{name}", ignore_errors=True)
            (tmp_path / f"bare-{name}").mkdir()
        return wall([sys.executable, "-c", SIDE_BY_SIDE, BARE_QNN, "one", "two"], tmp_path)

    ratio(JOBS, lambda: epctx(tmp_path, "--no-cache", "--jobs", "2"), bare, runs=5)
