"""Blocks of a decoder in four pieces, against a script that compiles them whole."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Literal

import pytest

from tests.bench import measuring
from tests.bench.blocks import Block
from tests.bench.measuring import Row, held, megabytes, ratio, wall
from tests.bench.projects import BARE_QNN
from tests.kit.command_line import PROGRAM

pytestmark = [pytest.mark.bench, pytest.mark.needs("module onnxruntime_qnn")]
BUILD = [*PROGRAM, "build", "m.yaml", "--no-cache"]


def write(folder: Path, kind: Literal["float16", "4-bit"], *, layers: int, pieces: int) -> None:
    """Write a block, and a manifest that builds it in pieces."""
    folder.mkdir(exist_ok=True)
    Block(kind=kind, layers=layers).write(folder / "m.onnx")
    cut = f", partition: {{pieces: {{count: {pieces}}}}}" if pieces > 1 else ""
    (folder / "m.yaml").write_text(
        f"""schema_version: 1
name: m
models: {{m: {{path: m.onnx}}}}
execution_providers: {{htp: {{provider: QNNExecutionProvider, options: {{soc_model: "60"}}}}}}
model_groups: {{g: {{models: [m], execution_providers: [htp]{cut}}}}}
""",
        encoding="utf-8",
    )


@pytest.mark.parametrize(
    ("kind", "row"),
    [("4-bit", measuring.PIECES_4_BIT), ("float16", measuring.PIECES_FLOAT16)],
)
def test_pieces_on_two_cores_are_faster_than_the_whole_on_one(
    tmp_path: Path, kind: Literal["float16", "4-bit"], row: Row
) -> None:
    write(tmp_path, kind, layers=4, pieces=4)

    def ours() -> float:
        shutil.rmtree(tmp_path / "dist", ignore_errors=True)
        return wall([*BUILD, "--no-verify", "--jobs", "2"], tmp_path)

    def theirs() -> float:
        shutil.rmtree(tmp_path / "bare", ignore_errors=True)
        (tmp_path / "bare").mkdir()
        return wall([sys.executable, "-c", BARE_QNN, "m.onnx", "bare/m_ctx.onnx"], tmp_path)

    ratio(row, ours, theirs, runs=3)


@pytest.mark.needs("Linux", "only Linux tells it")
@pytest.mark.parametrize(
    ("kind", "row"),
    [("4-bit", measuring.PIECES_MEMORY_4_BIT), ("float16", measuring.PIECES_MEMORY_FLOAT16)],
)
def test_a_build_in_pieces_takes_the_memory_of_a_piece(
    tmp_path: Path, kind: Literal["float16", "4-bit"], row: Row
) -> None:
    write(tmp_path / "whole", kind, layers=4, pieces=4)
    write(tmp_path / "piece", kind, layers=1, pieces=1)
    ours = megabytes([*BUILD, "--jobs", "1"], tmp_path / "whole")
    alone = megabytes([*BUILD, "--jobs", "1", "--no-verify"], tmp_path / "piece")
    held(row, ours / alone, f"megabytes of all processes: {ours:.0f}/{alone:.0f}")
