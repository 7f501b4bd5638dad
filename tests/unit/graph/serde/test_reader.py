from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ModelError
from epctx.graph.serde import reader
from epctx.graph.serde.reader import OnnxFile
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.external_data import DataFolder

BIG = np.arange(400, dtype=np.float32).reshape(20, 20)
SMALL = np.arange(5, dtype=np.int64)


def _model(*weights: onnx.TensorProto, nodes: tuple[onnx.NodeProto, ...] = ()) -> onnx.ModelProto:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    return helper.make_model(helper.make_graph(nodes, "g", [value], [value], list(weights)))


def _external(name: str, values: np.ndarray, offset: int = 0) -> onnx.TensorProto:
    tensor = TensorProto(
        name=name,
        dims=values.shape,
        data_type=helper.np_dtype_to_tensor_dtype(values.dtype),
        data_location=TensorProto.EXTERNAL,
    )
    tensor.external_data.add(key="location", value="w.bin")
    tensor.external_data.add(key="offset", value=str(offset))
    return tensor


def _read(folder: Path, model: onnx.ModelProto | bytes) -> OnnxFile:
    data = model if isinstance(model, bytes) else model.SerializeToString()
    (folder / "m.onnx").write_bytes(data)
    (folder / "w.bin").write_bytes(BIG.tobytes() + SMALL.tobytes())
    path = folder / "m.onnx"
    return reader.read(DataFile.open(path), DataFolder(folder, model=path), where="m.onnx")


def _refused(folder: Path, model: onnx.ModelProto | bytes) -> str:
    with pytest.raises(ModelError) as caught:
        _read(folder, model)
    assert str(caught.value).startswith(("m.onnx", str(folder)))
    return str(caught.value)


def test_large_tensors_inside_and_outside_become_references(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(BIG, "c"))
    model = _model(numpy_helper.from_array(BIG, "in"), _external("out", BIG), nodes=(constant,))
    loaded = _read(tmp_path, model)

    assert [w.file.path.name for w in loaded.weights] == ["m.onnx", "w.bin", "m.onnx"]
    for weight in loaded.weights:
        assert bytes(weight.file.view(weight.offset, weight.length)) == BIG.tobytes()
    tensors = [*loaded.proto.graph.initializer, loaded.proto.graph.node[0].attribute[0].t]
    for index, tensor in enumerate(tensors):
        assert {e.key: e.value for e in tensor.external_data} == {
            "location": reader.STAND_IN,
            "offset": str(index),
        }


def test_small_tensors_are_in_the_proto(tmp_path: Path) -> None:
    offset = BIG.nbytes
    loaded = _read(
        tmp_path, _model(numpy_helper.from_array(SMALL, "in"), _external("out", SMALL, offset))
    )
    assert loaded.weights == []
    for tensor in loaded.proto.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), SMALL)
        assert not tensor.external_data


def test_parts_of_sparse_tensors_are_in_the_proto(tmp_path: Path) -> None:
    sparse = onnx.SparseTensorProto(
        values=_external("s", BIG.reshape(-1)), indices=_external("i", SMALL, BIG.nbytes), dims=[9]
    )
    model = _model()
    model.graph.sparse_initializer.append(sparse)
    (loaded,) = _read(tmp_path, model).proto.graph.sparse_initializer
    np.testing.assert_array_equal(numpy_helper.to_array(loaded.values), BIG.reshape(-1))
    np.testing.assert_array_equal(numpy_helper.to_array(loaded.indices), SMALL)


def test_an_external_tensor_may_not_have_raw_data_too(tmp_path: Path) -> None:
    tensor = _external("w", BIG)
    tensor.raw_data = BIG.tobytes()
    assert "'w' has raw_data and external data" in _refused(tmp_path, _model(tensor))


def test_no_file_can_name_a_range_of_the_model_itself(tmp_path: Path) -> None:
    tensor = _external("w", BIG)
    tensor.external_data[0].value = reader.STAND_IN
    assert "which is not in" in _refused(tmp_path, _model(tensor))


def _typed(data_type: int, count: int, dims: list[int]) -> onnx.TensorProto:
    tensor = TensorProto(name="w", data_type=data_type, dims=dims)
    getattr(tensor, helper.tensor_dtype_to_field(data_type)).extend([0] * count)
    return tensor


@pytest.mark.parametrize("count", [0, 399, 401])
def test_raw_data_fits_type_and_shape(tmp_path: Path, count: int) -> None:
    tensor = TensorProto(name="w", data_type=1, dims=[400], raw_data=bytes(4 * count))
    message = _refused(tmp_path, _model(tensor))
    assert f"'w': has {4 * count} bytes of raw data, its type and shape need 1600" in message


@pytest.mark.parametrize(
    ("data_type", "dims", "count"),
    [
        (TensorProto.FLOAT, [2, 3], 6),
        (TensorProto.COMPLEX64, [3], 6),
        (TensorProto.INT4, [5], 3),
        (TensorProto.UINT2, [5], 2),
        (TensorProto.BFLOAT16, [5], 5),
        (TensorProto.UINT32, [], 1),
        (TensorProto.DOUBLE, [0, 7], 0),
    ],
)
def test_typed_fields_fit_the_shape(
    tmp_path: Path, data_type: int, dims: list[int], count: int
) -> None:
    assert _read(tmp_path, _model(_typed(data_type, count, dims))).weights == []
    message = _refused(tmp_path, _model(_typed(data_type, count + 1, dims)))
    assert f"'w': has {count + 1} elements, its type and shape need {count}" in message


def test_strings_fit_the_shape(tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.STRING, dims=[2], string_data=[b"a"])
    assert "has 1 elements" in _refused(tmp_path, _model(tensor))
    tensor.string_data.append(b"b")
    _read(tmp_path, _model(tensor))


def test_training_information_is_left_out(tmp_path: Path) -> None:
    model = _model()
    model.training_info.add().initialization.initializer.append(_external("gone", BIG))
    assert not _read(tmp_path, model).proto.training_info


@pytest.mark.parametrize(
    ("data", "what", "remedy"),
    [
        (b"", "is empty", "repeat it"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS", "git lfs pull"),
        (b"PK\x03\x04" + bytes(60), "a zip archive", "unpack"),
        (b"\x1f\x8b\x08" + bytes(60), "a gzip archive", "unpack"),
        (b"\x30\0\0\0ORTM" + bytes(60), "ONNX Runtime's own format", ".onnx"),
        (b"\x1c\0\0\0TFL3" + bytes(60), "TensorFlow Lite", "convert"),
        (b"\x89HDF\r\n\x1a\n", "HDF5", "convert"),
        (b"<?xml version='1.0'?><net/>", "XML", ".onnx"),
        (b"<!DOCTYPE html><html></html>", "a web page", "download"),
        (b'{"a": 1}', "JSON", ".onnx"),
        (b"hello world, this is text\n", "is text", ".onnx"),
        (b"\xde\xad\xbe\xef" * 20, "is not an ONNX model, or is damaged", "compare its size"),
        (TensorProto(name="w" * 20).SerializeToString(), "is not an ONNX model", ""),
    ],
)
def test_what_is_no_model_is_called_what_it_is(
    tmp_path: Path, data: bytes, what: str, remedy: str
) -> None:
    message = _refused(tmp_path, data)
    assert what in message
    assert remedy in message.split("->")[1]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_model_is_damaged(tmp_path: Path, share: float) -> None:
    data = _model(numpy_helper.from_array(BIG, "w")).SerializeToString()
    assert "damaged" in _refused(tmp_path, data[: int(len(data) * share)])


def test_a_model_without_a_graph_is_none(tmp_path: Path) -> None:
    assert "it has no graph" in _refused(
        tmp_path, onnx.ModelProto(ir_version=8).SerializeToString()
    )
