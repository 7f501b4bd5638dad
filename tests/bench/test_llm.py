"""Decoder pairs that share their weights, of the size that users have; runs on the simulator."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import onnx
import pytest

from tests.bench import measuring
from tests.bench.decoder import Sizes, write_pair
from tests.bench.measuring import anonymous_megabytes, held, ratio, wall
from tests.bench.projects import BARE_RUN, export
from tests.kit.command_line import PROGRAM

pytestmark = [pytest.mark.bench, pytest.mark.needs("module onnxruntime_qnn")]
torch = pytest.mark.needs("torch in .venv-zoo", "made by `make .venv-zoo/.ready`")

VERIFIED = [*PROGRAM, "build", "m.yaml", "--no-cache"]
PAIR = ("prefill", "decode")
LARGE = Sizes(layers=12)
COUNTED = """\
import pathlib, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
pathlib.Path("io").write_text(pathlib.Path("/proc/self/io").read_text())
"""
"""Runs a command, and keeps what the system has counted of it and its children."""


def write_manifest(folder: Path, *models: str, verify: str = "{}") -> None:
    """One group, which shares one context if it has several models."""
    listed = ", ".join(models)
    lines = ["schema_version: 1", "name: m", "models:"]
    lines += [f"  {name}: {{path: {name}.onnx}}" for name in models]
    ep = 'provider: QNNExecutionProvider, options: {soc_model: "60"}'
    lines += [f"execution_providers: {{ep: {{{ep}}}}}", "model_groups:", "  g:"]
    lines += [f"    models: [{listed}]", "    execution_providers: [ep]", f"    verify: {verify}"]
    if len(models) > 1:
        lines.append(f"    sharing_groups: {{main: [{listed}]}}")
    (folder / "m.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def build(folder: Path, *options: str) -> float:
    """Seconds of a build from nothing."""
    shutil.rmtree(folder / "dist", ignore_errors=True)
    return wall([*VERIFIED, *options], folder)


def bare(folder: Path, *models: str, sets: int = 1) -> list[str]:
    """The script that does without epctx, into a new folder."""
    shutil.rmtree(folder / "bare", ignore_errors=True)
    (folder / "bare").mkdir()
    return [sys.executable, "-c", BARE_RUN, "bare", str(sets), *models]


def write_for_the_script(folder: Path, name: str) -> str:
    """The model with the weights of its norms second: else QNN 2.7.0 does not compile it."""
    model = onnx.load(folder / f"{name}.onnx", load_external_data=False)
    weights = {each.name for each in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Mul" and node.input[0] in weights:
            node.input[:] = node.input[::-1]
    onnx.save(model, folder / f"plain_{name}.onnx")
    return f"plain_{name}"


@torch
def test_a_llama_is_compiled_for_prompt_and_token_and_run(tmp_path: Path) -> None:
    export("llama", tmp_path)
    ranges = "{given_0: [0, 31999], given_1: [0, 0], given_2: [0, 127]}"
    write_manifest(tmp_path, *PAIR, verify=f"{{inputs: {{ranges: {ranges}}}}}")
    plain = [write_for_the_script(tmp_path, name) for name in PAIR]
    ratio(
        measuring.LLM,
        lambda: build(tmp_path),
        lambda: wall(bare(tmp_path, *plain), tmp_path),
        runs=3,
    )


@pytest.mark.needs("Linux", "only Linux tells it")
def test_a_large_pair_needs_the_memory_and_the_disk_of_its_compile(tmp_path: Path) -> None:
    size = write_pair(tmp_path, LARGE)
    write_manifest(tmp_path, *PAIR)
    theirs = counted(bare(tmp_path, *PAIR, sets=0), tmp_path)
    ours = counted([*VERIFIED, "--no-verify"], tmp_path)
    note = f"anonymous megabytes: {ours[0]:.0f}/{theirs[0]:.0f}, of {size / 1e6:.0f} of weights"
    held(measuring.LLM_MEMORY, ours[0] / theirs[0], note)
    files = [each for each in (tmp_path / "dist" / "m").rglob("*") if each.is_file()]
    outputs = sum(each.stat().st_size for each in files)
    note = f"gigabytes read, written: {ours[1]}, by the script {theirs[1]}; outputs {outputs}"
    held(measuring.LLM_WRITTEN, ours[1][1] / (outputs + size), note)


def counted(command: list[str], folder: Path) -> tuple[float, tuple[int, int]]:
    """The most anonymous megabytes of a command and its children; bytes read and written."""
    most = anonymous_megabytes([sys.executable, "-c", COUNTED, *command], folder)
    lines = (folder / "io").read_text(encoding="ascii").splitlines()
    counts = dict(line.split(": ") for line in lines)
    return most, (int(counts["rchar"]), int(counts["wchar"]))


@torch
def test_a_transformer_costs_its_compile_and_a_run_of_each_input_set(tmp_path: Path) -> None:
    export("deit", tmp_path)
    write_manifest(tmp_path, "deit", verify="{inputs: {count: 2}}")
    ratio(
        measuring.DEIT,
        lambda: build(tmp_path),
        lambda: wall(bare(tmp_path, "deit", sets=2), tmp_path),
        runs=3,
    )


@torch
def test_a_budget_ends_numbers_that_take_longer(tmp_path: Path) -> None:
    export("unet", tmp_path)
    write_manifest(tmp_path, "unet", verify="{budget: 20, inputs: {count: 10}}")

    def seconds() -> float:
        build(tmp_path)
        (group,) = json.loads((tmp_path / "dist" / "m.build.json").read_bytes())["groups"]
        checked = {each["input_set"] for each in group["verify"]["numbers"]}
        left = [each["message"] for each in group["verify"]["findings"]]
        assert "seed 0, set 0" in checked and any("not checked: budget" in each for each in left)
        (stage,) = (each for each in group["stages"] if each["stage"] == "verify")
        return float(stage["end"] - stage["start"])

    pairs = [seconds() for _ in range(3)]
    held(measuring.BUDGET, sorted(pairs)[1], "what numbers took, of 10 input sets", pairs=pairs)
