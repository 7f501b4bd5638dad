from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ModelError
from epctx.graph.serde import skeleton


def save(path: Path, *tensors: onnx.TensorProto, **fields: object) -> Path:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([], "g", [info], [info], list(tensors))
    made = helper.make_model(graph, **fields)
    path.write_bytes(made.SerializeToString())
    return path


def test_large_weights_are_left_out_and_small_ones_read(tmp_path: Path) -> None:
    small = numpy_helper.from_array(np.arange(3), "small")
    large = numpy_helper.from_array(np.zeros(10_000, np.float32), "large")
    model = skeleton.read(save(tmp_path / "m.onnx", small, large))
    kept, stripped = model.graph.initializer
    assert numpy_helper.to_array(kept).tolist() == [0, 1, 2]
    assert not stripped.raw_data and list(stripped.dims) == [10_000]
    assert not skeleton.is_external(kept) and not skeleton.is_external(stripped)


def test_what_really_is_in_another_file_is_told_apart(tmp_path: Path) -> None:
    other = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    other.external_data.add(key="location", value="w.data")
    (tensor,) = skeleton.read(save(tmp_path / "m.onnx", other)).graph.initializer
    assert skeleton.is_external(tensor) and skeleton.location(tensor) == "w.data"
    del other.external_data[:]
    (tensor,) = skeleton.read(save(tmp_path / "m.onnx", other)).graph.initializer
    assert skeleton.is_external(tensor) and skeleton.location(tensor) == ""


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"not a model at all", "is text, not an ONNX model"),
        (b"\xff\xff\xff", "is not an ONNX model"),
        (b"\x08\x07\x3a\x00", "it has no graph or no opset imports"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError) as caught:
        skeleton.read(tmp_path / "m.onnx")
    assert why in str(caught.value)


def test_names_that_are_not_utf8_are_refused_everywhere(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", producer_name="maker")
    path.write_bytes(path.read_bytes().replace(b"maker", b"m\xff\xffer"))
    with pytest.raises(ModelError, match="is not UTF-8"):
        skeleton.read(path)


def test_a_file_beyond_2_gb_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "m.onnx").open("wb") as stream:
        stream.truncate(2**31)
    with pytest.raises(ModelError, match="beyond the 2 GB"):
        skeleton.read(tmp_path / "m.onnx")
