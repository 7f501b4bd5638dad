"""`epctx import qnn-context`: binaries that QNN compiled, without the models that it wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import epctx
from epctx.cli.app import app
from epctx.commands import import_context
from epctx.errors import InvalidGraph, UsageError
from tests.kit import real_models as models

pytestmark = pytest.mark.needs("module onnxruntime_qnn")
QNN = "QNNExecutionProvider"


def compiled(folder: Path, model: onnx.ModelProto) -> Path:
    """Compile a model for one chip, and return the compiled model."""
    source = models.save(folder / "m.onnx", model)
    output = folder / "built" / "m_ctx.onnx"
    return epctx.compile_model(source, output=output, providers=[(QNN, {"soc_model": "60"})])


def binary_of(model: Path) -> Path:
    (binary,) = model.parent.glob("*.bin")
    return binary


def outputs(model: Path, feed: np.ndarray, scratch: Path) -> list[np.ndarray]:
    (value,) = onnx.load(model).graph.input
    np.save(scratch / f"{value.name}.npy", feed)
    epctx.run(model, inputs=[scratch / f"{value.name}.npy"], save=scratch / "out.npz")
    with np.load(scratch / "out.npz") as results:
        return list(results.values())


@pytest.mark.parametrize("name", ["float", "quantized"])
def test_an_imported_binary_computes_what_the_build_computes(tmp_path: Path, name: str) -> None:
    model = models.quantized() if name == "quantized" else models.mlp(layers=2, width=32)
    built = compiled(tmp_path, model)
    imported = epctx.import_qnn_context(binary_of(built), tmp_path / "imported")
    assert imported.report.passed
    assert [path.name for path in imported.models] == ["m_qnn_ctx.onnx"]
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    feed = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    (expected,) = outputs(built, feed, tmp_path)
    (computed,) = outputs(imported.models[0], feed, tmp_path)
    np.testing.assert_array_equal(computed, expected)
    nodes = {node.op_type for node in onnx.load(imported.models[0]).graph.node}
    assert ("QuantizeLinear" in nodes) == (name == "quantized")


def test_quantized_values_may_stay_integers(tmp_path: Path) -> None:
    built = compiled(tmp_path, models.quantized())
    imported = epctx.import_qnn_context(binary_of(built), quantized_io=True)
    assert imported.models == (built.parent / "m_qnn_ctx.onnx",)
    graph = onnx.load(imported.models[0]).graph
    assert [node.op_type for node in graph.node] == ["EPContext"]
    assert graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8


def test_each_graph_of_a_sharing_group_becomes_a_model(tmp_path: Path) -> None:
    for name, batch in (("one", 1), ("eight", 8)):
        models.save(tmp_path / f"{name}.onnx", models.mlp(batch=batch, layers=2, width=32))
    (tmp_path / "m.yaml").write_text(
        "schema_version: 1\nname: m\nmodels: {one: {path: one.onnx}, eight: {path: eight.onnx}}\n"
        f"execution_providers: {{qnn: {{provider: {QNN}, options: {{soc_model: 60}}}}}}\n"
        "model_groups: {g: {models: [one, eight], execution_providers: [qnn], "
        "sharing_groups: {main: [one, eight]}}}\n"
    )
    epctx.build(tmp_path / "m.yaml", out=tmp_path / "dist")
    group = tmp_path / "dist" / "m" / "default" / "g"
    imported = epctx.import_qnn_context(binary_of(group / "one_ctx.onnx"), tmp_path / "imported")
    assert imported.report.passed
    sizes = {}
    for path in imported.models:
        graph = onnx.load(path).graph
        sizes[graph.input[0].type.tensor_type.shape.dim[0].dim_value] = graph.node[0].name
    own = {batch: onnx.load(group / f"{name}_ctx.onnx").graph.node[0].name
           for name, batch in (("one", 1), ("eight", 8))}  # fmt: skip
    assert sizes == own
    notes = [f.message for f in imported.report.findings() if f.check == "loads"]
    assert len(notes) == 2 and all("several sessions" in note for note in notes)


def test_a_damaged_binary_and_one_of_another_chip_are_refused(tmp_path: Path) -> None:
    binary = binary_of(compiled(tmp_path, models.mlp(layers=2, width=32)))
    with pytest.raises(InvalidGraph, match=r"its chip is 60 .*, not 43 \(sm8550, v73\)"):
        epctx.import_qnn_context(binary, tmp_path / "new", soc_model="sm8550")
    whole = binary.read_bytes()
    binary.write_bytes(whole[:584] + b"\xff" * 16 + whole[600:])
    with pytest.raises(InvalidGraph, match=r"SIGSEGV|refuses"):
        epctx.import_qnn_context(binary, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_binary_that_does_not_load_leaves_nothing(tmp_path: Path) -> None:
    """The system library reads this one; only the EP finds the fault."""
    binary = binary_of(compiled(tmp_path, models.mlp(layers=2, width=32)))
    whole = bytearray(binary.read_bytes())
    whole[len(whole) // 4 : -1024] = bytes(len(whole) - len(whole) // 4 - 1024)
    binary.write_bytes(whole)
    answer = CliRunner().invoke(app, ["import", "qnn-context", str(binary), "-o", f"{tmp_path}/n"])
    assert answer.exit_code == 7, answer.output
    assert "NOT verified" in answer.output
    assert not (tmp_path / "n").exists()


def test_graphs_whose_names_differ_by_case_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="same file"):
        import_context._names(tmp_path / "m.bin", {"Net": None, "net": None})


def test_files_are_not_replaced_unasked(tmp_path: Path) -> None:
    binary = binary_of(compiled(tmp_path, models.mlp(layers=2, width=32)))
    epctx.import_qnn_context(binary)
    with pytest.raises(UsageError, match="already exists"):
        epctx.import_qnn_context(binary)
    assert epctx.import_qnn_context(binary, force=True).report.passed
