"""Who is blamed where a model does not run, and that no command runs one elsewhere in silence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from epctx.cli.app import COMMANDS
from epctx.providers.onnxruntime import plugins
from tests.kit import command_line, projects

QNN, VINO = "QNNExecutionProvider", "OpenVINOExecutionProvider"
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
value = helper.make_tensor_value_info


def group(model: str, **inputs: object) -> dict[str, object]:
    return {"models": [model], "verify": {"inputs": inputs}}


MANIFEST = {
    "schema_version": 1,
    "name": "blame",
    "models": {n: {"path": f"{n}.onnx"} for n in ("broken", "index", "random")},
    "execution_providers": {"htp": {"provider": QNN, "options": {"soc_model": "60"}}},
    "defaults": {"execution_providers": ["htp"]},
    "model_groups": {
        "broken": group("broken"),
        "far": group("index", files=["far.npz"]),
        "random": group("random"),
        "right": group("index"),
        "unfed": group("index", ranges={"i": [50, 60]}),
    },
}


def save(path: Path, *nodes: onnx.NodeProto, index: bool = True) -> None:
    """`y`, of a MatMul of `x` and of what `nodes` make of `i`: `rest`."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((32, 32)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal((10, 32)).astype(np.float32), "t"),
        numpy_helper.from_array(np.array([100], np.int32), "hundred"),
    ]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
            *nodes,
            helper.make_node("Add", ["a", "rest"], ["y"], name="y"),
            helper.make_node("Tanh", ["a"], ["z"], name="z"),
        ],
        "g",
        [value("x", FLOAT, [1, 32]), *([value("i", INT32, [1])] if index else [])],
        [value("y", FLOAT, [1, 32]), value("z", FLOAT, [1, 32])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def gather(index: str) -> onnx.NodeProto:
    return helper.make_node("Gather", ["t", index], ["rest"], name="gather")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blame")
    past = helper.make_node("Add", ["i", "hundred"], ["j"], name="past")
    save(folder / "broken.onnx", past, gather("j"))
    save(folder / "index.onnx", gather("i"))
    noise = helper.make_node("RandomNormalLike", ["a"], ["rest"], name="noise")
    save(folder / "random.onnx", noise, index=False)
    odd = helper.make_node("IsInf", ["a"], ["odd"], name="odd")
    save(
        folder / "part.onnx",
        odd,
        helper.make_node("Cast", ["odd"], ["rest"], to=FLOAT),
        index=False,
    )
    np.savez(folder / "far.npz", x=np.zeros((1, 32), np.float32), i=np.array([70], np.int32))
    (folder / "m.yaml").write_text(yaml.safe_dump(MANIFEST), encoding="utf-8")
    return folder


@pytest.mark.needs_device(QNN)
def test_the_right_party_is_blamed(folder: Path) -> None:
    """One build, since a test of its own for each group would build them again."""
    ran = command_line.epctx("build", "m.yaml", "--keep-going", "--no-cache", cwd=folder)
    assert ran.returncode == 4 and "Traceback" not in ran.stderr
    report = json.loads((folder / "dist" / "blame.build.json").read_text(encoding="utf-8"))
    groups = {each["group"]: each for each in report["groups"]}
    for name, words in (
        ("broken", "the source model does not run: not on seed 0, set 0, inputs in the range of"),
        ("far", "the source model does not run on far.npz"),
    ):
        failure = groups[name]["failure"]
        assert (failure["kind"], failure["exit_code"]) == ("ModelError", 4)
        assert failure["what"].startswith(words)
    for name, words, agrees in (
        ("unfed", "the source model runs on inputs in the range of their consumers, not", False),
        (
            "random",
            "random: on the same inputs the source's kernels give other 'y' each time",
            True,
        ),
        ("right", "2 output", True),
    ):
        assert groups[name]["state"] == "built", groups[name]["failure"]
        findings = groups[name]["verify"]["findings"]
        assert not [f for f in findings if f["outcome"] == "fail"]
        told = [f["message"] for f in findings if f["check"] == "outputs"]
        assert any(message.startswith(words) for message in told), told
        assert any("agree with the source model" in message for message in told) is agrees
    sources = [s for each in report["groups"] for s in each["stages"] if s["stage"] == "source"]
    assert len(sources) == len(groups), "each source was run beside its compile"


TRIED: dict[str, tuple[tuple[str, ...], int, str]] = {
    "bisect": (("bisect", "m.yaml", "right", "index"), 5, "hides its devices"),
    "build": (("build", "m.yaml"), 5, "hides its devices"),
    "package": (("package", "m.yaml"), 5, "hides its devices"),
    "plan": (("plan", "m.yaml", "--partition"), 5, "hides its devices"),
    "reproduce": (("reproduce", "m.yaml"), 5, "hides its devices"),
    "run": (("run", "index.onnx", "--provider", QNN), 5, "hides its devices"),
}  # fmt: skip
WITHOUT_EP = {
    "cache", "diff", "env", "explain", "import", "inspect", "kit", "pull", "push", "report",
    "schema", "sign", "validate",
}  # fmt: skip
"""Commands that run no model and compile none."""
TOLD_ELSEWHERE = {
    "doctor": "tests/integration/test_hidden_devices.py",
    "init": "tests/unit/cli/test_init.py",
    "verify": "tests/integration/test_hidden_devices.py",
    "worker": "tests/integration/test_dask_eps.py",
}


@pytest.mark.parametrize("name", TRIED)
def test_no_command_runs_elsewhere_in_silence(folder: Path, tmp_path: Path, name: str) -> None:
    arguments, code, words = TRIED[name]
    hide = {plugins.HIDE: f"{QNN},{VINO}", "EPCTX_CACHE_DIR": str(tmp_path)}
    out = () if arguments[0] in ("run", "reproduce", "plan") else ("--out", str(tmp_path / "out"))
    ran = command_line.epctx(*arguments, *out, cwd=folder, **hide)
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert words in ran.stderr and "\n  -> " in ran.stderr
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("**/*_ctx.onnx"))


def test_every_command_is_tried() -> None:
    tried = {arguments[0] for arguments, _, _ in TRIED.values()}
    assert set(COMMANDS) == tried | WITHOUT_EP | set(TOLD_ELSEWHERE)


def test_what_runs_is_told_with_who_ran_how_much(folder: Path) -> None:
    ran = command_line.epctx("run", "index.onnx", cwd=folder)
    assert ran.returncode == 0
    assert "nodes: 4 on CPUExecutionProvider" in ran.stdout


@pytest.mark.needs_device(QNN)
def test_a_model_is_run_where_one_asks(folder: Path) -> None:
    """Also what the EP leaves to the CPU is told: it is no error."""
    ran = command_line.epctx("run", "part.onnx", "--provider", QNN, "--format", "json", cwd=folder)
    report = json.loads(ran.stdout)
    assert report["providers"] == [QNN, "CPUExecutionProvider"]
    assert report["nodes"] == {QNN: 4, "CPUExecutionProvider": 1}


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("verify.inputs.files", {"verify": {"inputs": {"files": ["in.npz"]}}}),
        ("quantize.calibration.files", {"quantize": {"calibration": {"files": ["in.npz"]}}}),
    ],
)
def test_a_damaged_file_of_inputs_is_called_damaged(
    tmp_path: Path, key: str, settings: dict[str, object]
) -> None:
    """Some of them were said to hold pickled data, with advice on how to load it unsafely."""
    project = projects.make(tmp_path, {"one": ["a"]}, **settings)
    path = tmp_path / "in.npz"
    np.savez(path, x=np.zeros((1, 32), np.float32))
    whole = path.read_bytes()
    torn = {"truncated": whole[: len(whole) // 2], "zeros in front": bytes(64) + whole[64:]}
    for what, content in (torn | {"empty": b""}).items():
        path.write_bytes(content)
        ran = command_line.inside("build", "m.yaml", cwd=project.folder)
        assert ran.returncode == 4, what
        assert f"one@default: {key}: in.npz: is damaged, or is not a .npz file" in ran.stderr, what
        assert "copy it again from where it was made" in ran.stderr and "pickle" not in ran.stderr
