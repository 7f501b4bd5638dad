"""Models with a branch that one input set leaves out: what is wrong there is found, on QNN too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from epctx.cli.app import app

QNN = "QNNExecutionProvider"
FORMS = ("if", "where", "equal", "greater")
LABELS = {"if": "c=", "where": "c=", "equal": "mode=", "greater": "t="}
value = helper.make_tensor_value_info


def weight(seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((16, 16)) / 5).astype(np.float32)


def branches() -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    """Nodes of `g`, which float16 holds, and of `b`, which overflows it: both are about |h|."""
    good = [helper.make_node("MatMul", ["h", "w2"], ["g"], name="good")]
    bad = [
        helper.make_node("Mul", ["h", "big"], ["b0"], name="bad0"),
        helper.make_node("Mul", ["b0", "b0"], ["b1"], name="bad1"),
        helper.make_node("Sqrt", ["b1"], ["b2"], name="bad2"),
        helper.make_node("Div", ["b2", "big"], ["b"], name="bad"),
    ]
    return good, bad


def model(form: str, *, swapped: bool = False) -> onnx.ModelProto:
    """y of x, by the good nodes or by the bad ones, as another input decides."""
    good, bad = branches()
    sides, nodes = (["b", "g"], [*good, *bad]) if swapped else (["g", "b"], [*good, *bad])
    given = {
        "if": value("c", TensorProto.BOOL, []),
        "where": value("c", TensorProto.BOOL, [1]),
        "equal": value("mode", TensorProto.INT64, []),
        "greater": value("t", TensorProto.FLOAT, []),
    }[form]
    if form == "if":
        graphs = [
            helper.make_graph(made, out, [], [value(out, TensorProto.FLOAT, [1, 16])])
            for made, out in ((good, "g"), (bad, "b"))
        ]
        then, other = graphs[::-1] if swapped else graphs
        nodes = [
            helper.make_node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other)
        ]
    else:
        decided = "c" if form == "where" else "decided"
        if form != "where":
            op = form.capitalize()
            nodes.append(helper.make_node(op, [given.name, "constant"], [decided], name=form))
        nodes.append(helper.make_node("Where", [decided, *sides], ["y"], name="select"))
    constant = np.array(3) if form == "equal" else np.array(5, np.float32)
    weights = {"w1": weight(1), "w2": weight(2), "big": np.array([6e4], np.float32)}
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w1"], ["h"], name="first"), *nodes],
        "g",
        [value("x", TensorProto.FLOAT, [1, 16]), given],
        [value("y", TensorProto.FLOAT, [1, 16])],
        [numpy_helper.from_array(v, n) for n, v in {**weights, "constant": constant}.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def epctx(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*arguments, "--color", "never"])
    return result.exit_code, result.output + result.stderr


def write(folder: Path, provider: dict[str, Any], **groups: dict[str, Any]) -> None:
    manifest = {
        "schema_version": 1,
        "name": "m",
        "models": {n: {"path": f"{n}.onnx"} for g in groups.values() for n in g["models"]},
        "execution_providers": {"ep": provider},
        "defaults": {"execution_providers": ["ep"]},
        "model_groups": groups,
    }
    (folder / "m.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.needs_device(QNN)
def test_a_branch_that_the_first_input_set_leaves_out_fails_the_build(here: Path) -> None:
    names = [f"{form}{n}" for form in FORMS for n in (0, 1)]
    for name in names:
        onnx.save(model(name[:-1], swapped=name[-1] == "1"), here / f"{name}.onnx")
    htp = {"provider": QNN, "options": {"soc_model": "60"}}
    write(here, htp, **{name: {"models": [name]} for name in names})
    code, said = epctx("build", "m.yaml", "--keep-going")
    assert code == 7
    failed = {name: f"error[E0704]: {name}@default: {name}_ctx.onnx: numbers: " for name in names}
    assert [name for name, words in failed.items() if words not in said] == []
    report = json.loads(Path("dist/m.build.json").read_text(encoding="utf-8"))
    for form in FORMS:
        sets = {
            tuple(n["input_set"] for n in group["verify"]["numbers"])
            for group in report["groups"]
            if group["group"][:-1] == form
        }
        (labels,) = sets
        assert len(labels) == 2 and LABELS[form] in labels[1], "one more set, whichever is right"


def test_nodes_that_no_input_set_reaches_are_named_and_required(here: Path) -> None:
    """Inputs from files are left as they are."""
    onnx.save(model("if"), here / "a.onnx")
    np.savez("one.npz", x=np.ones((1, 16), np.float32), c=np.array(True))
    np.savez("two.npz", x=np.ones((1, 16), np.float32), c=np.array(False))
    ref = {"provider": "ReferenceExecutionProvider"}
    settings: dict[str, Any] = {"inputs": {"files": ["one.npz"]}}
    write(here, ref, g={"models": ["a"], "verify": settings})
    words = "no input set reaches 4 of its nodes: 'bad0', 'bad1', 'bad2', 'bad'"
    code, said = epctx("build", "m.yaml")
    assert code == 0 and words in said and "42 % of 7 nodes exercised" in said
    assert "numbers not all run" in said and "`verify.inputs.files`" in said
    code, said = epctx("verify", "dist/m", "--manifest", "m.yaml")
    assert code == 0 and words in said
    write(here, ref, g={"models": ["a"], "verify": {**settings, "require": ["numbers"]}})
    code, said = epctx("build", "m.yaml")
    assert code == 7 and f"required numbers were not run: {words}" in said
    settings = {"inputs": {"files": ["one.npz", "two.npz"]}, "require": ["numbers"]}
    write(here, ref, g={"models": ["a"], "verify": settings})
    code, said = epctx("build", "m.yaml", "-v")
    assert code == 0 and "a_ctx.onnx: coverage: 100 % of 7 nodes exercised" in said, said


def test_golden_files_have_the_further_input_sets(here: Path) -> None:
    onnx.save(model("equal"), here / "a.onnx")
    write(here, {"provider": "ReferenceExecutionProvider"}, g={"models": ["a"]})
    code, _ = epctx("build", "m.yaml", "--golden")
    assert code == 0
    record = json.loads(Path("dist/m/default/g/golden/golden.json").read_text(encoding="utf-8"))
    assert len(record["models"]["a"]["sets"]) == 2
    code, said = epctx("verify", "dist/m/default/g", "--golden", "-v")
    assert code == 0 and "2 input sets" in said, said
