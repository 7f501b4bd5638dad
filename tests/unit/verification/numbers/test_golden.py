"""Golden files: what a source gives, once it is known that it gives it twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from epctx.errors import ManifestError, ModelError
from epctx.manifest import ModelSource, VerifyInputs, VerifySettings
from epctx.verification.numbers import golden, golden_files
from epctx.verification.numbers.golden_files import FOLDER
from tests.kit import folders, onnx_text
from tests.kit.controlled import Case


def source(tmp_path: Path, op: str) -> ModelSource:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["z"], name="n")],
        "g",
        [value("x", TensorProto.FLOAT, [1, 4])],
        [value("z", TensorProto.FLOAT, [1, 4])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "m.onnx")
    return ModelSource(name="m", path=tmp_path / "m.onnx")


def made(tmp_path: Path, op: str) -> list[str]:
    folders.write(tmp_path / "out", sums=False)
    group = folders.group(
        models=(source(tmp_path, op),), verify=VerifySettings(inputs=VerifyInputs(count=2))
    )
    files = golden.make(group, tmp_path / "out", tmp_path / FOLDER)
    return sorted(file.name for file in files)


def test_inputs_and_outputs_are_written_with_their_sums(tmp_path: Path) -> None:
    assert made(tmp_path, "Tanh") == ["SHA256SUMS", "golden.json", "m.npz"]


def test_of_two_answers_that_of_the_kernels_is_golden(tmp_path: Path) -> None:
    """A stock session computes 2 x here, and the kernels x: onnx infers another rank."""
    text = (
        "g (float[1,4] x) => (float[1,4] z) <int64[0] a = {}> {"
        " s = Squeeze(x, a) t = Shape(s) r = Size(t) f = Cast <to = 1> (r) z = Mul(x, f) }"
    )
    onnx.save(onnx_text.proto(text), tmp_path / "m.onnx")
    folders.write(tmp_path / "out", sums=False)
    group = folders.group(models=(ModelSource(name="m", path=tmp_path / "m.onnx"),))
    golden.make(group, tmp_path / "out", tmp_path / FOLDER)
    record = golden_files.read_record(tmp_path / FOLDER).models["m"]
    (case,) = golden_files.read(tmp_path / FOLDER, "m", record)
    assert np.array_equal(case.outputs["z"], case.inputs["x"])


def test_nothing_is_golden_that_is_drawn_at_random(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="its outputs z are random") as raised:
        made(tmp_path, "RandomNormalLike")
    assert "training mode" in raised.value.remedy and raised.value.model == "m"


def test_what_no_size_fits_has_no_golden_inputs(tmp_path: Path) -> None:
    folders.write(tmp_path / "out", sums=False)
    context = onnx.load(tmp_path / "out" / "m_ctx.onnx", load_external_data=False)
    context.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(context, tmp_path / "out" / "m_ctx.onnx")
    verify = VerifySettings(inputs=VerifyInputs(dimensions={"n": (5,)}))
    group = folders.group(models=(source(tmp_path, "Tanh"),), verify=verify)
    with pytest.raises(ManifestError, match=r"for the model m: .* at n=5 of its open") as told:
        golden.make(group, tmp_path / "out", tmp_path / FOLDER)
    assert "verify.inputs.dimensions" in told.value.remedy


def test_all_models_of_a_folder_are_run_on_golden_inputs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share nothing: each was open once before, for the inputs of the manifest."""
    case = Case(tmp_path, monkeypatch)
    case.source("n")
    other = folders.model(folders.context_node("n", ep_cache_context="n_reference.bin"))
    (case.folder / "n_ctx.onnx").write_bytes(other.SerializeToString())
    case.models = ("m", "n")
    golden.make(case.group(), case.folder, case.folder / FOLDER)
    case.request = {"golden": True}
    told = [(f.subject[0], f.outcome, "golden inputs" in f.message) for f in case.check("outputs")]
    assert told == [(name, "pass", golden) for golden in (False, True) for name in "mn"]
    case.change = lambda outputs: {"z": -outputs["z"]}
    case.request |= {"group": None}
    assert [f.outcome for f in case.check("outputs")] == ["fail", "fail"]
