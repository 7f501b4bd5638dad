"""A build that fails names who is at fault: the model, a package of passes, epctx, or the EP."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import yaml
from onnx import numpy_helper
from typer.testing import CliRunner

from epctx.cli.app import app
from epctx.files.digest import Buffer
from epctx.graph.passes import registry
from epctx.graph.serde import canonical
from epctx.providers.onnxruntime.exchange import Staging
from tests.kit import command_line, onnx_text
from tests.kit.inline import Inline

NCHWC = "com.microsoft.nchwc"
QNN = "QNNExecutionProvider"
Make = Callable[[], onnx.ModelProto]


def text(graph: str, *weights: onnx.TensorProto) -> onnx.ModelProto:
    model = onnx_text.proto(graph, opsets='"" : 17', ir_version=9)
    model.graph.initializer.extend(weights)
    return model


def tensor(name: str, value: object, dtype: str = "int64") -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value, dtype), name)


def runs_only_fused() -> onnx.ModelProto:
    """A Reshape to [1, 200, dim of x], which ONNX Runtime's fusion takes for [1, 200, -1]."""
    return text(
        "g (float[10, 20, 30] r, float[a, b, c] x) => (float[d, e, f] y) {"
        " s = Shape (x) n = Gather <axis = 0> (s, two) u = Unsqueeze (n, zero)"
        " t = Concat <axis = 0> (first, u) y = Reshape (r, t) }",
        tensor("two", 2),
        tensor("zero", [0]),
        tensor("first", [1, 200]),
    )


def no_node() -> onnx.ModelProto:
    return text("g (float[4] x) => (float[4] x) { }")


def no_node_is_needed() -> onnx.ModelProto:
    return text("g (float[4] x) => (float[4] x) { y = Relu (x) }")


def optimized_for_a_cpu() -> onnx.ModelProto:
    """Conv as ONNX Runtime saves it in the layout of this CPU, if it has one for it."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((16, 16, 3, 3)).astype(np.float32)
    model = text(
        "g (float[1, 16, 8, 8] x) => (float[1, 16, 6, 6] y) { c = Conv (x, w) y = Relu (c) }",
        numpy_helper.from_array(weight, "w"),
    )
    options = ort.SessionOptions()
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/saved.onnx"
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        saved = onnx.load(f"{folder}/saved.onnx")
    if all(node.domain != NCHWC for node in saved.graph.node):
        saved.graph.node[0].domain = NCHWC
    return saved


def no_outputs() -> onnx.ModelProto:
    return text("g (float[4] x) => () { y = Relu (x) }")


def an_empty_output() -> onnx.ModelProto:
    """`z` has no element; the shape of `x` is folded, so that two answers are compared."""
    return text(
        "g (float[1, 4] x) => (float[1, 4] y, float[1, 0] z) {"
        " s = Shape (x) c = ConstantOfShape (s) y = Add (x, c) z = Slice (y, o, o, one) }",
        tensor("o", [0]),
        tensor("one", [1]),
    )


def dropout_in_training() -> onnx.ModelProto:
    """At sizes of one, what it draws first is dropped in every run."""
    return text(
        "g (float[a, b] x) => (float[a, b] y) { s = Add (x, x) y = Dropout (s, ratio, training) }",
        tensor("ratio", 0.8, "float32"),
        tensor("training", True, "bool"),
    )


def types_that_differ() -> onnx.ModelProto:
    return text("g (float[1, 8] x, int64[1, 8] i) => (float[1, 8] y) { [a] y = Add (x, i) }")


def sound() -> onnx.ModelProto:
    return text("g (float[1, 8] x) => (float[1, 8] y) { [r] r = Relu (x) [t] y = Tanh (r) }")


REFERENCE: dict[Make, tuple[int, str] | None] = {
    runs_only_fused: (4, "the source model runs only with ONNX Runtime's optimizations"),
    no_node: (4, "has no node to compile"),
    no_node_is_needed: (4, "has no node to compile"),
    optimized_for_a_cpu: (4, "is optimized for a CPU already"),
    no_outputs: (4, "has no outputs"),
    an_empty_output: None,
    dropout_in_training: None,
}


def project(folder: Path, *makes: Make, ep: dict[str, Any], **group: Any) -> None:
    names = [make.__name__ for make in makes]
    for make, name in zip(makes, names, strict=True):
        onnx.save(make(), folder / f"{name}.onnx")
    manifest = {
        "schema_version": 1,
        "name": "faults",
        "models": {name: {"path": f"{name}.onnx"} for name in names},
        "execution_providers": {"ep": ep},
        "model_groups": {n: {"models": [n], "execution_providers": ["ep"], **group} for n in names},
    }
    (folder / "m.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")


def groups(folder: Path) -> dict[str, Any]:
    report = json.loads((folder / "dist" / "faults.build.json").read_text(encoding="utf-8"))
    return {each["group"]: each for each in report["groups"]}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("faults")
    project(folder, *REFERENCE, ep={"provider": "ReferenceExecutionProvider"})
    command_line.epctx("build", "m.yaml", "--keep-going", "--no-cache", cwd=folder)
    return groups(folder)


@pytest.mark.parametrize("make", REFERENCE, ids=lambda make: make.__name__)
def test_models_on_the_reference_ep(built: dict[str, Any], make: Make) -> None:
    group, wanted = built[make.__name__], REFERENCE[make]
    failure = group["failure"]
    if wanted is None:
        assert group["state"] == "built", failure
        return
    assert (failure["exit_code"], failure["what"]) == wanted
    assert "report it" not in failure["remedy"]


def test_a_dropout_in_training_is_named_random(built: dict[str, Any]) -> None:
    findings = built["dropout_in_training"]["verify"]["findings"]
    told = [f["message"] for f in findings if f["outcome"] == "not checkable"]
    assert any(each.startswith("random: ") and "'y'" in each for each in told), told


def test_plain_onnx_is_written_without_a_node(tmp_path: Path) -> None:
    project(tmp_path, no_node, ep={"provider": "ReferenceExecutionProvider"})
    document = yaml.safe_load((tmp_path / "m.yaml").read_text(encoding="utf-8"))
    document["model_groups"]["no_node"]["execution_providers"] = []
    del document["execution_providers"]
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    ran = command_line.epctx("build", "m.yaml", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def build_on_qnn(folder: Path, monkeypatch: pytest.MonkeyPatch, make: Make, **group: Any) -> Any:
    """Build in this process, where a writer can be broken; the failure is returned."""
    project(folder, make, ep={"provider": QNN, "options": {"soc_model": "60"}}, **group)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("epctx.worker.pool.Worker", Inline)
    arguments = ["build", "m.yaml", "--no-verify", "--no-cache", "--jobs", "1"]
    ended = CliRunner().invoke(app, arguments)
    failure = groups(folder)[make.__name__]["failure"]
    assert failure is None or failure["exit_code"] == ended.exit_code
    return failure


def break_type(model: ir.Model) -> None:
    """Let a Relu have an integer, which ONNX Runtime refuses."""
    for node in model.graph:
        for value in node.outputs:
            value.dtype = ir.DataType.INT64


@pytest.mark.needs_device(QNN)
def test_a_type_error_of_the_model_is_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = build_on_qnn(tmp_path, monkeypatch, types_that_differ)
    assert (failure["kind"], failure["exit_code"]) == ("ModelError", 4)
    assert "Type Error" in failure["why"] and "(a)" in failure["why"]


@pytest.mark.needs_device(QNN)
def test_a_file_that_epctx_writes_wrongly_is_a_bug_of_epctx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Staging.write

    def broken(staging: Staging, model: ir.Model, stem: str) -> str:
        break_type(model)
        return write(staging, model, stem)

    monkeypatch.setattr(Staging, "write", broken)
    failure = build_on_qnn(tmp_path, monkeypatch, sound)
    assert (failure["kind"], failure["exit_code"]) == ("EpctxError", 1)
    assert failure["what"] == f"ONNX Runtime refuses the model that epctx wrote for {QNN}"
    assert failure["remedy"].startswith("report it with the log file ")


def test_a_published_file_that_epctx_writes_wrongly_is_a_bug_of_epctx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = canonical.chunks

    def broken(model: ir.Model) -> Iterator[Buffer]:
        if any(node.op_type == "EPContext" for node in model.graph):
            break_type(model)
        return write(model)

    monkeypatch.setattr(canonical, "chunks", broken)
    reference = {"provider": "ReferenceExecutionProvider"}
    project(tmp_path, sound, ep=reference, partition={"exclude": {"nodes": ["t"]}})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("epctx.worker.pool.Worker", Inline)
    ended = CliRunner().invoke(app, ["build", "m.yaml", "--no-cache", "--jobs", "1"])
    failure = groups(tmp_path)["sound"]["failure"]
    assert (failure["kind"], failure["exit_code"], ended.exit_code) == ("EpctxError", 1, 1), failure
    assert failure["what"].startswith("epctx wrote an invalid model: ")
    assert failure["remedy"].startswith("report it, with the source model and the logs")


class Breaking(ir.passes.InPlacePass):
    """A pass of others that makes a graph of types that do not fit."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        break_type(model)
        return ir.passes.PassResult(model, modified=True)


@pytest.mark.needs_device(QNN)
def test_a_foreign_pass_that_breaks_types_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "breaking_passes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: breaking-passes\nVersion: 1.0\n")
    entry = f"[{registry.GROUP}]\nbreak-types = {__name__}:Breaking\n"
    (info / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(str(tmp_path))
    failure = build_on_qnn(tmp_path, monkeypatch, sound, optimize={"level": ["break-types"]})
    assert (failure["kind"], failure["exit_code"]) == ("CompileError", 6)
    assert failure["what"] == "the pass of breaking-passes 1.0 made a broken graph"
    assert failure["where"] == "optimize pass break-types"
