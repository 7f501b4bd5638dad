"""`epctx run`: inputs from files or generated, EPs named or found, numbers told and saved."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner, Result

import epctx
from epctx.cli.app import app
from epctx.worker import pool
from tests.kit.building import assert_close, build, cpu, mlp, model_of, normal, reference
from tests.kit.inline import Inline

X = normal((1, 64))


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is carried out here; tests/integration run it where `epctx run` does."""
    monkeypatch.setattr(pool, "Worker", Inline)


def run(path: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["run", str(path), *options])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ep = reference(exclude_ops=("Relu",))
    return build(tmp_path, {"m": mlp()}, providers=[ep]) / "m_ctx.onnx"


def wanted(x: np.ndarray = X) -> np.ndarray:
    return np.asarray(cpu(mlp()).run(None, {"x": x})[0])


def test_it_tells_what_comes_out(model: Path) -> None:
    result = run(model)
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    assert "m_ctx.onnx on ReferenceExecutionProvider, CPUExecutionProvider; loaded in" in words
    assert "y float32[1, 64]" in words and "seed 0, set 0" in words
    assert "simulated" not in words


@pytest.mark.parametrize("kind", [".npz", ".npy", ".pb"])
def test_inputs_from_files_and_outputs_to_one(model: Path, tmp_path: Path, kind: str) -> None:
    given = tmp_path / f"input_0{kind}"
    if kind == ".npz":
        np.savez(given, x=X)
    elif kind == ".npy":
        np.save(given, X)
    else:
        given.write_bytes(numpy_helper.from_array(X, "x").SerializeToString())
    saved = tmp_path / "out" / "y.npz"
    result = run(model, "--input", str(given), "--save", str(saved), "--format", "json")
    assert result.exit_code == 0, result.output
    (case,) = json.loads(result.stdout)["cases"]
    assert case["saved"] == saved.as_posix()
    assert_close([np.load(saved)["y"]], [wanted()])
    (output,) = case["outputs"]
    assert output["shape"] == [1, 64] and output["greatest"] == pytest.approx(wanted().max())


def test_generated_inputs_depend_on_seed_number_and_range(model: Path, tmp_path: Path) -> None:
    def outputs(*options: str) -> list[np.ndarray]:
        result = run(model, "--count", "2", "--save", str(tmp_path / "o.npz"), *options)
        assert result.exit_code == 0, result.output
        return [np.load(tmp_path / f"o-{i}.npz")["y"] for i in range(2)]

    first, second = outputs()
    assert (first != second).any() and (outputs()[0] == first).all()
    assert (outputs("--seed", "1")[0] != first).any()
    zeros = outputs("--range", "x=0,0")[0]
    assert_close([zeros], [wanted(np.zeros((1, 64), np.float32))])


def test_symbolic_dimensions_need_a_size(tmp_path: Path) -> None:
    model = mlp()
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, tmp_path / "m.onnx")
    result = run(tmp_path / "m.onnx")
    assert result.exit_code == 2 and "'batch'" in result.stderr
    assert "-> give its sizes, like --dimension batch=1, or" in result.stderr
    result = run(tmp_path / "m.onnx", "--dimension", "batch=3")
    assert result.exit_code == 0 and "float32[3, 64]" in result.stdout
    result = run(tmp_path / "m.onnx", "--dimension", "bach=3")
    assert result.exit_code == 2 and 'did you mean "batch"' in result.stderr


def test_eps_are_named_with_their_options(tmp_path: Path) -> None:
    one, two = {"source": "one", "ops": ("MatMul",)}, {"source": "two", "ops": ("Add", "Tanh")}
    providers = [reference(**one), reference(**two)]  # type: ignore[arg-type]
    path = build(tmp_path, {"m": mlp()}, providers=providers) / "m_ctx.onnx"
    name = "ReferenceExecutionProvider"
    assert run(path).exit_code == 7
    both = run(path, "--provider", f"{name},source=one", "--provider", f"{name},source=two")
    assert both.exit_code == 0, both.output
    missing = run(path, "--provider", name, "--option", "source=one")
    assert missing.exit_code == 7 and "INVALID_GRAPH" in missing.stderr


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--option", "a=b"], 2, "--option without --provider"),
        (["--provider", "Acme"], 5, "'Acme' is not installed"),
        (["--provider", "ReferenceExecutionProvider", "--option", "sorce=b"], 3, "source"),
        (["--provider", "A", "--provider", "B", "--option", "a=b"], 2, "behind its name"),
        (["--option", "a"], 2, "without"),
        (["--provider", "ReferenceExecutionProvider", "--option", "a"], 2, "NAME=VALUE"),
        (["--range", "x=1"], 2, "two numbers"),
        (["--range", "x=2,1"], 2, "x"),
        (["--range", "z=0,1"], 2, "not an input of the model"),
        (["--dimension", "x=0"], 2, "is not a size"),
        (["--save", "out.txt"], 2, ".npz"),
        (["--input", "absent.npz"], 2, "absent.npz"),
        (["--input", "file.txt"], 4, "not a file of model inputs"),
    ],
    ids=str,
)
def test_what_cannot_be_is_told(
    model: Path, options: list[str], code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    Path("file.txt").touch()
    result = run(model, *options)
    assert result.exit_code == code and words in result.stderr, result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("provider", "code", "words"),
    [
        ("QNNExecutionProvder", 5, 'did you mean "QNNExecutionProvider"?'),
        ("TensorrtExecutionProvider", 5, "has no TensorrtExecutionProvider"),
        ("OpenVINOExecutionProvider", 5, "hides its devices"),
        ("QNNExecutionProvider,soc_modl=60", 3, 'did you mean "soc_model"?'),
        ("QNNExecutionProvider,soc_model=abc", 3, "write, for example, 60"),
        ("TensorrtExecutionProvider,trt_fp17_enable=1", 3, 'did you mean "trt_fp16_enable"?'),
        ("ReferenceExecutionProvider", 2, "compile it"),
        ("AzureExecutionProvider", 6, "takes no node of it"),
    ],
)
def test_a_plain_model_runs_on_the_ep_that_is_named_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, code: int, words: str
) -> None:
    monkeypatch.setenv("EPCTX_HIDE_DEVICES", "OpenVINOExecutionProvider")
    onnx.save(mlp(), tmp_path / "m.onnx")
    result = run(tmp_path / "m.onnx", "--provider", provider)
    assert result.exit_code == code and words in result.stderr, result.output
    assert "\n  -> " in result.stderr and result.stdout == ""


def test_an_ep_that_takes_nothing_of_a_compiled_model_is_left_out(model: Path) -> None:
    name = "ReferenceExecutionProvider"
    result = run(model, "--provider", name, "--provider", "AzureExecutionProvider")
    assert result.exit_code == 2
    assert "AzureExecutionProvider takes no node of it: all of it runs on" in result.stderr
    result = run(model, "--provider", name, "--option", "sorce=x")
    assert result.exit_code == 3 and 'did you mean "source"?' in result.stderr


def test_who_ran_how_many_nodes_is_told(model: Path) -> None:
    contexts = sum(node.op_type == "EPContext" for node in onnx.load(model).graph.node)
    told = run(model).stdout
    assert f"nodes: {contexts} on ReferenceExecutionProvider, " in told
    nodes = json.loads(run(model, "--format", "json").stdout)["nodes"]
    assert nodes["ReferenceExecutionProvider"] == contexts and nodes["CPUExecutionProvider"] > 0


def test_inputs_that_do_not_fit_are_the_callers_error(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", x=X.astype(np.float64)[:, :3])
    assert run(model, "--input", str(tmp_path / "bad.npz")).exit_code == 2


def test_a_model_that_fails_on_its_inputs_is_told_in_a_line(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gather", ["t", "i"], ["y"])],
        "g",
        [info("t", TensorProto.FLOAT, [4]), info("i", TensorProto.INT64, [1])],
        [info("y", TensorProto.FLOAT, [1])],
    )
    onnx.save(model_of(graph), tmp_path / "m.onnx")
    result = run(tmp_path / "m.onnx", "--range", "i=7,7")
    assert result.exit_code == 2 and "fails on these inputs" in result.stderr


def test_a_broken_context_is_exit_7(model: Path) -> None:
    (model.parent / "m_reference.bin").write_bytes(b"")
    result = run(model)
    assert result.exit_code == 7 and "INVALID_GRAPH" in result.stderr
    assert run(model.parent / "absent.onnx").exit_code == 2


def kinds(path: Path, *nodes: onnx.NodeProto) -> dict[str, str]:
    """Run a model of x, two floats, and save its outputs; their kinds."""
    made = [onnx.ValueInfoProto(name=node.output[0]) for node in nodes]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        made,
        [numpy_helper.from_array(np.zeros(1, np.float32), "z")],
    )
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    report = epctx.run(path, save=path.with_suffix(".npz"))
    return {out.name: out.kind for out in report.cases[0].outputs}


def test_outputs_of_other_kinds_are_described_and_saved(tmp_path: Path) -> None:
    node = helper.make_node
    assert kinds(
        tmp_path / "a.onnx",
        node("Div", ["x", "z"], ["file"]),
        node("Cast", ["x"], ["half"], to=TensorProto.BFLOAT16),
    ) == {"file": "float32", "half": "bfloat16"}
    saved = np.load(tmp_path / "a.npz")
    assert np.isinf(saved["file"]).all() and saved["half"].dtype == np.float32
    assert kinds(
        tmp_path / "b.onnx",
        node("Cast", ["x"], ["text"], to=TensorProto.STRING),
        node("SplitToSequence", ["x"], ["parts"]),
    ) == {"text": "string", "parts[0]": "float32", "parts[1]": "float32"}
    assert np.load(tmp_path / "b.npz")["text"].dtype.kind == "U"
