"""Two real EPs in one model, and nodes kept off a real EP, from the manifest to the files.

QNN is given every node and leaves some on the CPU, inside its partition: OpenVINO, after it in the
priority order, gets those. Source: real-eps.md sections 4, 10 and 11.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import epctx
from epctx.graph import epcontext
from scripts import random_weights
from tests.kit import command_line, real_models

QNN, OPENVINO = "QNNExecutionProvider", "OpenVINOExecutionProvider"
on_both = pytest.mark.needs_device(QNN, OPENVINO)
HEAD = """schema_version: 1
name: m
models: {m: {path: m.onnx}}
execution_providers:
  htp: {provider: QNNExecutionProvider, options: {soc_model: "60"}}
  vino: {provider: OpenVINOExecutionProvider}
  ref: {provider: ReferenceExecutionProvider}
model_groups:
"""


def between() -> onnx.ModelProto:
    """MatMul, Relu, then IsInf and Det that QNN cannot, then Add, MatMul, Relu.

    OpenVINO takes IsInf, and no Det.
    """
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((rng.standard_normal((8, 8)) / 8**0.5).astype(np.float32), name)
        for name in ("w0", "w1")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h0"], name="mm0"),
        helper.make_node("Relu", ["h0"], ["r0"], name="relu0"),
        helper.make_node("IsInf", ["r0"], ["i"], name="isinf"),
        helper.make_node("Cast", ["i"], ["f"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Det", ["r0"], ["d"], name="det"),
        helper.make_node("Add", ["f", "d"], ["a"], name="add0"),
        helper.make_node("Add", ["r0", "a"], ["s"], name="add1"),
        helper.make_node("MatMul", ["s", "w1"], ["h1"], name="mm1"),
        helper.make_node("Relu", ["h1"], ["y"], name="relu1"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [8, 8])],
        [value("y", TensorProto.FLOAT, [8, 8])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def build(folder: Path, groups: str, *, code: int = 0) -> dict[str, dict[str, Any]]:
    """`epctx build`; the report's groups, by name."""
    (folder / "m.yaml").write_text(HEAD + groups, encoding="utf-8")
    ran = command_line.epctx("build", "m.yaml", "--no-cache", "--format", "json", cwd=folder)
    assert ran.returncode == code, ran.stderr
    return {group["group"]: group for group in json.loads(ran.stdout)["groups"]}


def contexts(model: Path) -> list[tuple[str | None, str | None]]:
    """Source and binary of each EPContext node."""
    return [(n.source, n.context_path) for n in epcontext.read_all(onnx.load(model))]


def outputs_found(group: dict[str, Any]) -> list[tuple[str, str]]:
    found = group["verify"]["findings"]
    return [(f["outcome"], f["message"]) for f in found if f["check"] in ("outputs", "runs")]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("both")
    onnx.save(between(), folder / "m.onnx")
    groups = """
  main: {models: [m], execution_providers: [htp, vino], optimize: {level: none}}
  inside: {models: [m], execution_providers: [htp, vino], optimize: {level: none}, embed_mode: 1}
  excluded:
    models: [m]
    execution_providers: [htp, vino]
    optimize: {level: none}
    partition: {exclude: {op_types: [IsInf]}}
  no_qnn: {models: [m], execution_providers: [vino, ref], optimize: {level: none}}
"""
    return folder / "dist" / "m" / "default", build(folder, groups)


@on_both
def test_both_eps_have_their_part_of_one_model(
    both: tuple[Path, dict[str, dict[str, Any]]],
) -> None:
    published, _ = both
    files = {p.name for p in (published / "main").iterdir()}
    assert files == {"m_ctx.onnx", "m_qnn.bin", f"m_{OPENVINO}.bin", "SHA256SUMS"}
    found = contexts(published / "main" / "m_ctx.onnx")
    assert {source for source, _ in found} == {QNN, OPENVINO}
    assert {path for _, path in found} >= {"m_qnn.bin", f"m_{OPENVINO}.bin"}
    kept = onnx.load(published / "main" / "m_ctx.onnx").graph.node
    assert [n.name for n in kept if n.op_type != "EPContext"] == ["det"]


@on_both
def test_the_report_says_who_took_what_in_the_end(
    both: tuple[Path, dict[str, dict[str, Any]]],
) -> None:
    _, groups = both
    (model,) = groups["main"]["models"]
    taken: Counter[str] = Counter()
    for part in model["partitions"]:
        taken[part["provider"]] += part["nodes"]
    assert taken["htp"] + taken["vino"] == 8
    assert taken["vino"] >= 1
    assert model["coverage"] == 8 / 9
    (left,) = model["declined"]
    assert left["node"] == "det"
    qnn, openvino = left["reasons"]
    assert (qnn[0], openvino[0]) == ("qnn", OPENVINO)
    assert "not supported by QNN EP" in qnn[1]


@pytest.mark.parametrize("name", ["main", "inside"])
@on_both
def test_numbers_are_checked_with_each_ep_in_a_session_of_its_own(
    both: tuple[Path, dict[str, dict[str, Any]]], name: str
) -> None:
    """QNN's two graphs, of one context, with OpenVINO's and the CPU's nodes between them."""
    _, groups = both
    assert {outcome for outcome, _ in outputs_found(groups[name])} == {"pass"}
    (numbers,) = groups[name]["verify"]["numbers"]
    assert (numbers["sessions"], numbers["passed"]) == ("files", True)
    assert 0.9999 < numbers["comparison"]["cosine"] < 1.0, "float16 on the HTP"
    (loads,) = (f for f in groups[name]["verify"]["findings"] if f["check"] == "loads")
    assert "each EP in a session of its own: QNN's x86 simulator does not run" in loads["message"]


@on_both
def test_generating_sessions_pass_values_from_one_ep_to_the_other(tmp_path: Path) -> None:
    """QNN, OpenVINO for an If, QNN again, whose simulator fails on memory that is OpenVINO's.

    The models share a QNN context, so their files cannot be loaded here: these sessions must do.
    """
    onnx.save(real_models.branching(weights="outside", extra="Sinh"), tmp_path / "m.onnx")
    onnx.save(real_models.mlp(layers=2, width=64), tmp_path / "n.onnx")
    head = HEAD.replace("{path: m.onnx}", "{path: m.onnx}, n: {path: n.onnx}")
    group = "execution_providers: [htp, vino], sharing_groups: {s: [n, m]}, optimize: {level: none}"
    manifest = head + f"  g: {{models: [n, m], {group}}}"
    (tmp_path / "m.yaml").write_text(manifest, encoding="utf-8")
    report = epctx.build(tmp_path / "m.yaml", out=tmp_path / "dist", cache=False)
    (built,) = report.groups
    assert built.state == "built" and built.verify is not None
    found = {(n.model, n.sessions, n.passed) for n in built.verify.numbers}
    assert found == {("n_ctx.onnx", "generating", True), ("m_ctx.onnx", "generating", True)}
    (_, two) = built.models
    assert {p.provider for p in two.partitions} == {"htp", "vino"}


@on_both
def test_wrong_numbers_of_such_a_model_are_found(
    both: tuple[Path, dict[str, dict[str, Any]]], tmp_path: Path
) -> None:
    """Held against a source with other weights after the nodes of OpenVINO and the CPU."""
    published, _ = both
    source = between()
    weight = next(t for t in source.graph.initializer if t.name == "w1")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.5, "w1"))
    onnx.save(source, tmp_path / "m.onnx")
    group = "  main: {models: [m], execution_providers: [htp, vino], optimize: {level: none}}"
    (tmp_path / "m.yaml").write_text(HEAD + group, encoding="utf-8")
    against = ("--manifest", "m.yaml", "--format", "json")
    ran = command_line.epctx("verify", published / "main", *against, cwd=tmp_path)
    assert ran.returncode == 7, ran.stderr
    (folder,) = json.loads(ran.stdout)["folders"]
    failed = [f for f in folder["findings"] if f["outcome"] == "fail"]
    assert [(f["policy"], f["check"]) for f in failed] == [("numbers", "outputs")], failed


@on_both
def test_the_reason_holds_on_this_host(both: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    """In one session it loads, and each run fails; if that changes, one session will do."""
    published, _ = both
    code = """
import sys
import numpy as np, onnxruntime as ort
from epctx.providers import registry
options = ort.SessionOptions()
registry.bind("QNNExecutionProvider", {"soc_model": "60"}).add_to(options)
registry.bind("OpenVINOExecutionProvider", {}).add_to(options)
session = ort.InferenceSession(sys.argv[1], options, enable_fallback=0)
try:
    session.run(None, {"x": np.ones((8, 8), np.float32)})
except Exception as error:
    print(error)
else:
    print("it runs")
"""
    model = str(published / "main" / "m_ctx.onnx")
    ran = subprocess.run(
        [sys.executable, "-c", code, model],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "No HTP or DX12 allocation found" in ran.stdout


@on_both
def test_embedded_contexts_need_no_binary(both: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    published, _ = both
    assert {p.name for p in (published / "inside").iterdir()} == {"m_ctx.onnx", "SHA256SUMS"}
    sources = {source for source, _ in contexts(published / "inside" / "m_ctx.onnx")}
    assert sources == {QNN, OPENVINO}


@on_both
def test_compile_model_chains_them_too(tmp_path: Path) -> None:
    """In a process of its own, as a build of the one model."""
    onnx.save(between(), tmp_path / "m.onnx")
    path = epctx.compile_model(
        tmp_path / "m.onnx",
        output=tmp_path / "out" / "m_ctx.onnx",
        providers=[(QNN, {"soc_model": "60"}), OPENVINO],
        optimize="none",
    )
    assert {source for source, _ in contexts(path)} == {QNN, OPENVINO}
    files = {p.name for p in path.parent.iterdir()}
    assert files == {"m_ctx.onnx", "m_qnn.bin", f"m_{OPENVINO}.bin"}


@on_both
def test_what_is_excluded_goes_to_neither(both: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    _, groups = both
    (model,) = groups["excluded"]["models"]
    left = {entry["node"]: entry["reasons"] for entry in model["declined"]}
    why = "excluded by manifest: op type IsInf"
    assert left["isinf"] == [["qnn", why], [OPENVINO, why]]
    assert "no kernel" in left["det"][1][1] or "did not take it" in left["det"][1][1]
    published, _ = both
    files = {p.name for p in (published / "excluded").iterdir()}
    assert files == {"m_ctx.onnx", "m_qnn.bin", "SHA256SUMS"}, "OpenVINO has nothing of it"


@on_both
def test_where_the_second_takes_nothing_the_sessions_that_made_it_are_judged(
    both: tuple[Path, dict[str, dict[str, Any]]],
) -> None:
    """QNN has two parts of the model in one binary, which its simulator does not load."""
    _, groups = both
    found = outputs_found(groups["excluded"])
    assert "pass" in {outcome for outcome, _ in found}, found
    assert {n["sessions"] for n in groups["excluded"]["verify"]["numbers"]} == {"generating"}


@on_both
def test_openvino_first_and_another_ep_after_it_hold_their_numbers(
    both: tuple[Path, dict[str, dict[str, Any]]],
) -> None:
    """The same way without QNN, on an order that this host can load and run."""
    _, groups = both
    (model,) = groups["no_qnn"]["models"]
    assert model["coverage"] == 1.0
    assert {p["provider"] for p in model["partitions"]} == {"vino", "ref"}
    found = outputs_found(groups["no_qnn"])
    assert "pass" in {outcome for outcome, _ in found}, found
    assert "fail" not in {outcome for outcome, _ in found}


@pytest.fixture(scope="module")
def foreseen(both: tuple[Path, dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """What `epctx plan --partition` says of the same groups, before anything is compiled."""
    folder = both[0].parents[2]
    ran = command_line.epctx("plan", "m.yaml", "--partition", "--format", "json", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    return {group["group"]: group for group in json.loads(ran.stdout)}


@pytest.mark.parametrize("name", ["main", "excluded", "no_qnn"])
@on_both
def test_a_plan_foresees_who_takes_which_node(
    both: tuple[Path, dict[str, dict[str, Any]]], foreseen: dict[str, Any], name: str
) -> None:
    _, groups = both
    (built,) = groups[name]["models"]
    (planned,) = foreseen[name]["models"]
    assert foreseen[name]["silent"] == []
    assert planned["coverage"] == built["coverage"]
    assert [d["node"] for d in planned["declined"]] == [d["node"] for d in built["declined"]]
    for one, other in zip(planned["declined"], built["declined"], strict=True):
        assert one["reasons"][0] == other["reasons"][0]
    taken = [{p["provider"]: 0 for p in model["partitions"]} for model in (planned, built)]
    for counts, model in zip(taken, (planned, built), strict=True):
        for partition in model["partitions"]:
            counts[partition["provider"]] += partition["nodes"]
    assert taken[0] == taken[1]


@pytest.fixture(scope="module")
def squeezenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("squeezenet")
    random_weights.convert(random_weights.light_models()["squeezenet"], folder / "m.onnx")
    return folder


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("htp", marks=pytest.mark.needs_device(QNN)),
        pytest.param("vino", marks=pytest.mark.needs_device(OPENVINO)),
    ],
)
def test_excluded_nodes_of_a_real_model_run_on_the_cpu(squeezenet: Path, name: str) -> None:
    folder = squeezenet
    partition = (
        "partition: {exclude: {op_types: [Concat]}}, verify: {tolerance: {max_rel: 0.05, floor: 0}}"
    )
    groups = build(folder, f"  {name}: {{models: [m], execution_providers: [{name}], {partition}}}")
    (model,) = groups[name]["models"]
    source = onnx.load(folder / "m.onnx", load_external_data=False)
    concats = sorted(n.output[0] for n in source.graph.node if n.op_type == "Concat")
    assert len(concats) == 8
    excluded = [d for d in model["declined"] if "excluded by manifest" in d["reasons"][0][1]]
    assert [d["op_type"] for d in excluded] == ["Concat"] * 8
    made = onnx.load(folder / "dist" / "m" / "default" / name / "m_ctx.onnx")
    kept = sorted(n.output[0] for n in made.graph.node if n.op_type == "Concat")
    assert kept == concats, "they are nodes of the model, for the CPU EP"
    found = outputs_found(groups[name])
    assert "pass" in {outcome for outcome, _ in found}, found
    assert "fail" not in {outcome for outcome, _ in found}
    assert all(n["passed"] for n in groups[name]["verify"]["numbers"])
    assert min(n["comparison"]["cosine"] for n in groups[name]["verify"]["numbers"]) > 0.99
