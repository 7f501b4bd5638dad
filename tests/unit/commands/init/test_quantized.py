"""`epctx init --quantize`: a manifest that builds as it stands, and says where samples go."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.commands.init import command
from epctx.errors import UsageError
from epctx.parsing import load
from tests.kit.building import mlp

QNN = "QNNExecutionProvider"
OPTIONS = {"soc_model": "60"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(mlp(width=8, layers=1), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def half(path: Path) -> Path:
    made = mlp(width=8, layers=1)
    for tensor in made.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(made, path)
    return path


def test_it_is_valid_and_says_where_samples_go(model: Path) -> None:
    path = command.write([model], model.with_name("epctx.yaml"), quantize=True)
    (group,) = load.load(path).targets[0].groups
    assert group.quantize is not None and group.quantize.calibration.random
    text = path.read_text(encoding="utf-8")
    assert "savez('calib/0.npz', **{'x': ...})    # float32[1, 8]\n" in text
    assert "put `calibration: {files: [calib/*.npz]}` here" in text


def test_samples_that_are_there_are_taken(model: Path) -> None:
    (model.parent / "calib").mkdir()
    np.savez(model.parent / "calib" / "0.npz", x=np.zeros((1, 8), np.float32))
    path = command.write([model], model.with_name("epctx.yaml"), quantize=True)
    (group,) = load.load(path).targets[0].groups
    assert group.quantize is not None
    assert [each.name for each in group.quantize.calibration.files] == ["0.npz"]


def test_for_qnn_a_comment_says_that_it_exists_and_is_valid(model: Path) -> None:
    path = command.write([model], model.with_name("a.yaml"), provider=QNN, options=OPTIONS)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("# quantize", "quantize"), encoding="utf-8")
    (group,) = load.load(path).targets[0].groups
    assert group.quantize is not None
    assert group.preset == "qnn"


def test_what_cannot_be_quantized_is_refused(model: Path) -> None:
    path = model.with_name("epctx.yaml")
    with pytest.raises(UsageError, match="takes models of float32, and this is float16"):
        command.write([half(model.with_name("half.onnx"))], path, quantize=True)
    with pytest.raises(UsageError, match="this is a folder of onnxruntime-genai"):
        command.write([model.parent], path, quantize=True)
    assert not path.exists()


def test_no_name_ends_a_comment(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x\n    x", TensorProto.FLOAT, ["n\n  y: 1", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Relu", [x.name], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    written = [*command.quantize_lines([tmp_path / "m.onnx"], tmp_path / "m.yaml", QNN, asked=True)]
    assert not [line for line in written if "\n" in line]
