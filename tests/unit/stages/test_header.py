"""A model as load has it before any checker sees it."""

from pathlib import Path

import onnx
import pytest
from onnx import helper

from epctx.errors import ModelError
from epctx.manifest import ModelSource
from epctx.stages import header
from tests.kit.validating import model


def test_a_header_has_the_structure_and_says_which_model_an_error_is_about(tmp_path: Path) -> None:
    source = ModelSource(name="a", path=tmp_path / "a.onnx")
    with pytest.raises(ModelError, match="does not exist") as caught:
        header.read(source)
    assert caught.value.model == "a"
    model(source.path)
    assert [node.op_type for node in header.read(source).graph.node] == ["MatMul", "Relu"]


def test_a_model_that_is_compiled_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", name="n")
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    other = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = helper.make_graph([node], "g", [value], [other])
    onnx.save(helper.make_model(graph), tmp_path / "a.onnx")
    with pytest.raises(ModelError, match="is compiled already"):
        header.read(ModelSource(name="a", path=tmp_path / "a.onnx"))


def test_data_is_in_its_own_folder_or_beside_the_model(tmp_path: Path) -> None:
    source = ModelSource(name="a", path=tmp_path / "a.onnx", external_data_dir=tmp_path / "no")
    with pytest.raises(ModelError, match="is not a folder"):
        header.data_folder(source)
