"""Cold QNN builds of models as users have them, against the bare script (the whole processes)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import onnx
import pytest

from tests.bench import measuring
from tests.bench.measuring import Row, ratio, wall
from tests.bench.projects import BARE_QNN, BUILD, export, write_manifest
from tests.kit import building

pytestmark = [pytest.mark.bench, pytest.mark.needs("module onnxruntime_qnn")]

EXPORTED = {"mobilenet": measuring.MOBILENET, "resnet": measuring.RESNET}


def against_a_bare_script(folder: Path, name: str, row: Row) -> None:
    write_manifest(folder, [name], "QNNExecutionProvider", ', options: {soc_model: "60"}')

    def ours() -> float:
        shutil.rmtree(folder / "dist", ignore_errors=True)
        return wall([*BUILD, "--no-cache"], folder)

    def bare() -> float:
        out = folder / "bare"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        script = [sys.executable, "-c", BARE_QNN, f"{name}.onnx", "bare/bare_ctx.onnx"]
        return wall(script, folder)

    ratio(row, ours, bare, runs=7)


def test_a_small_mlp(tmp_path: Path) -> None:
    onnx.save(building.mlp(), tmp_path / "mlp.onnx")
    against_a_bare_script(tmp_path, "mlp", measuring.MLP)


@pytest.mark.needs("torch in .venv-zoo", "made by `make .venv-zoo/.ready`")
@pytest.mark.parametrize("name", EXPORTED)
def test_what_torch_exports(name: str, tmp_path: Path) -> None:
    export(name, tmp_path)
    against_a_bare_script(tmp_path, name, EXPORTED[name])
