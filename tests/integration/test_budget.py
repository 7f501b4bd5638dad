"""`verify.budget` as a bound: a run that does not end is ended, and the build goes on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from epctx import api
from epctx.cli.app import app
from tests.kit import command_line

QNN = "QNNExecutionProvider"
HEAD = """
schema_version: 1
name: m
models: {%s}
execution_providers:
  ref: {provider: ReferenceExecutionProvider}
  htp: {provider: QNNExecutionProvider, options: {soc_model: "60"}}
model_groups:
"""


def looping(path: Path, turns: int) -> None:
    """Adds 1 to its input so many times, which nobody folds: the input says how many."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["y_in", "one"], ["y_out"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("y_in", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("y_out", TensorProto.FLOAT, [1]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["turns", "", "x"], ["y"], body=body)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [
            numpy_helper.from_array(np.asarray(turns, np.int64), "turns"),
            numpy_helper.from_array(np.ones(1, np.float32), "one"),
        ],
    )
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def convolving(path: Path, layers: int = 2, channels: int = 32, size: int = 64) -> None:
    """Convolutions: a moment on the CPU, and seconds in a simulator."""
    rng = np.random.default_rng(0)
    nodes, weights, name, count = [], [], "x", 3
    for layer in range(layers):
        kernel = rng.standard_normal((channels, count, 3, 3)) / (3 * count**0.5)
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"w{layer}"))
        out = "y" if layer == layers - 1 else f"c{layer}"
        pads = [1, 1, 1, 1]
        nodes.append(helper.make_node("Conv", [name, f"w{layer}"], [out], name=out, pads=pads))
        name, count = out, channels
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, channels, size, size])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def build(folder: Path, models: str, groups: str, *options: str) -> dict[str, dict[str, Any]]:
    """The groups of the report of a build that must end well."""
    text = HEAD % ", ".join(f"{name}: {{path: {name}.onnx}}" for name in models) + groups
    (folder / "m.yaml").write_text(text, encoding="utf-8")
    ended = CliRunner().invoke(app, ["build", str(folder / "m.yaml"), *options, "-v"])
    assert ended.exit_code == 0, ended.output + ended.stderr
    report = json.loads(Path("dist/m.build.json").read_text(encoding="utf-8"))
    return {group["group"]: group for group in report["groups"]}


def unchecked(group: dict[str, Any]) -> list[str]:
    """What was not checked of a group's numbers, and that nothing says otherwise."""
    found = [f for f in group["verify"]["findings"] if f["policy"] == "numbers"]
    assert all(f["outcome"] != "fail" for f in found)
    return [f["message"] for f in found if f["outcome"] == "not checkable"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_source_that_does_not_end_is_ended_and_its_group_is_published(here: Path) -> None:
    looping(here / "a.onnx", 2**40)
    groups = build(here, "a", "  g: {models: [a], execution_providers: [ref], verify: {budget: 1}}")
    assert unchecked(groups["g"]) == ["not checked: budget (1 s are used up)"]
    assert groups["g"]["verify"]["numbers"] == []
    assert (here / "dist/m/default/g/a_ctx.onnx").is_file()
    assert not list((here / "dist").rglob("*.log")), "what was ended on purpose leaves no log"


def test_a_partial_result_is_for_its_budget_only(here: Path) -> None:
    looping(here / "a.onnx", 10)
    group = "  g: {models: [a], execution_providers: [ref], verify: {budget: %s}}"
    assert "budget (0 s" in unchecked(build(here, "a", group % 0)["g"])[0]
    assert "budget (0 s" in unchecked(build(here, "a", group % 0)["g"])[0], "it is up to date"
    found = build(here, "a", group % "null")["g"]
    assert [n["passed"] for n in found["verify"]["numbers"]] == [True]
    assert {action["action"] for action in found["actions"] if action["ran"]} == {"verify"}


def refused(folder: Path, text: str, *options: str) -> str:
    """Return the output of a build that must end with exit code 7."""
    (folder / "m.yaml").write_text(text, encoding="utf-8")
    ended = CliRunner().invoke(app, ["build", str(folder / "m.yaml"), *options])
    assert ended.exit_code == 7, ended.output + ended.stderr
    return ended.stderr


def test_a_verdict_without_numbers_is_none_where_they_are_required(here: Path) -> None:
    """Neither one from the cache, nor what was published by it."""
    looping(here / "a.onnx", 10)
    group = "  g: {models: [a], execution_providers: [ref], verify: {budget: %s, require: [%s]}}"
    build(here, "a", group % (0, ""))
    assert "nothing to do" in CliRunner().invoke(app, ["build", "m.yaml"]).stdout
    text = HEAD % "a: {path: a.onnx}" + group % (0, "numbers")
    for out in ("dist", "new", "new"):
        said = refused(here, text, "--out", out)
        assert "g@default: a_ctx.onnx: numbers: required numbers were not run: " in said
        assert "budget (0 s" in said, "of the whole, or of the set that it had come to"
        assert "-> raise `verify.budget`" in said
    assert not (here / "new" / "m").exists()
    (why,) = api.plan(here / "m.yaml").groups[0].because
    assert why == "verify of a: required numbers were not run"
    found = build(here, "a", group % ("null", "numbers"))["g"]
    assert found["verify"]["numbers"][0]["inputs"] == "generated"
    assert "nothing to do" in CliRunner().invoke(app, ["build", "m.yaml"]).stdout


def test_no_build_is_begun_that_skips_what_the_manifest_requires(here: Path) -> None:
    looping(here / "a.onnx", 10)
    group = "  g: {models: [a], execution_providers: [ref], verify: {require: [numbers]}}"
    said = refused(here, HEAD % "a: {path: a.onnx}" + group, "--no-verify")
    assert "error[E0704]: g@default: `verify.require` needs numbers" in said
    assert not (here / "dist").exists()
    assert CliRunner().invoke(app, ["reproduce", "m.yaml"]).exit_code == 0, "it runs no numbers"


@pytest.mark.needs_device(QNN)
def test_numbers_can_be_required_where_strict_fails(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An x86 host can run QNN's simulator, and not tell whether a device takes the binary."""
    convolving(here / "a.onnx", size=16)
    group = "  g: {models: [a], execution_providers: [htp], verify: {require: [numbers]}}"
    build(here, "a", group)
    strict = ["verify", "dist", "--manifest", "m.yaml", "--strict"]
    assert CliRunner().invoke(app, strict[:4]).exit_code == 0
    assert CliRunner().invoke(app, strict).exit_code == 7
    monkeypatch.setenv("EPCTX_HIDE_DEVICES", QNN)
    (failed,) = api.verify("dist", manifest="m.yaml").findings("fail")
    assert failed.message.startswith("required numbers were not run: not on this host: ")


@pytest.mark.needs_device(QNN)
def test_a_simulation_that_does_not_end_is_ended(here: Path) -> None:
    convolving(here / "a.onnx", layers=8, channels=96, size=160)
    groups = build(here, "a", "  g: {models: [a], execution_providers: [htp], verify: {budget: 1}}")
    (told,) = (each for each in unchecked(groups["g"]) if "budget" in each)
    assert told.endswith("not checked: budget (1 s are used up)")


@pytest.mark.needs_device(QNN)
def test_a_generating_session_that_does_not_end_is_ended(here: Path) -> None:
    """Of models that share a context, whose compile is whole before its sessions are run."""
    convolving(here / "a.onnx", layers=8, channels=96, size=160)
    convolving(here / "b.onnx")
    group = "{models: [a, b], execution_providers: [htp], sharing_groups: {s: [a, b]}"
    groups = build(here, "ab", f"  g: {group}, verify: {{budget: 1}}}}")
    told = [each for each in unchecked(groups["g"]) if "budget" in each]
    assert len(told) == 2
    assert all(each.endswith("not checked: budget (1 s are used up)") for each in told)
    assert {p.name for p in (here / "dist/m/default/g").iterdir()} == {
        "a_ctx.onnx",
        "b_ctx.onnx",
        "a_qnn.bin",
        "SHA256SUMS",
    }


@pytest.mark.needs_device(QNN)
def test_a_build_that_is_killed_goes_on_from_the_last_run_that_ended(here: Path) -> None:
    convolving(here / "a.onnx", layers=6, channels=96, size=64)
    group = "  g: {models: [a], execution_providers: [htp], verify: {inputs: {count: 3}}}"
    (here / "m.yaml").write_text(HEAD % "a: {path: a.onnx}" + group, encoding="utf-8")
    command = [*command_line.PROGRAM, "build", "m.yaml", "--format", "jsonl"]
    with subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = next((line for line in process.stdout if "set 2 of 3" in line), None)
        process.kill()
    assert seen is not None
    again = subprocess.run(command, cwd=here, stdout=subprocess.PIPE, text=True, check=True)
    assert "set 2 of 3" in again.stdout and "set 1 of 3" not in again.stdout
    report = json.loads(Path("dist/m.build.json").read_text(encoding="utf-8"))
    assert len(report["groups"][0]["verify"]["numbers"]) == 3
    assert '"stage":"compile"' not in again.stdout


@pytest.mark.needs_device(QNN)
def test_session_groups_are_run_beside_each_other_with_the_same_result(here: Path) -> None:
    for name in "ab":
        convolving(here / f"{name}.onnx")
    group = "  g: {models: [a, b], execution_providers: [htp]}"
    apart = build(here, "ab", group, "--no-cache", "--jobs", "2")["g"]
    assert {s["subject"] for s in apart["stages"] if s["stage"] == "verify"} == {"a", "b", "g"}
    together = build(here, "ab", group, "--no-cache", "--jobs", "1")["g"]
    assert apart["verify"] == together["verify"]
    assert apart["files"] == together["files"]
