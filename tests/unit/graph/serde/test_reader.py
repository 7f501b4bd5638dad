"""ONNX files read without their weights."""

from __future__ import annotations

from collections.abc import Iterator
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

WORDS = [
    "mdom", "mkey", "mval", "odom", "fnam", "fdom", "fovr", "fdoc", "finp", "fatt", "fopd", "fkey",
    "nnam", "nopt", "ndom", "novr", "ndoc", "ninp", "nout", "nkey", "anam", "aref", "adoc", "gnam",
    "gdoc", "gkey", "qnam", "qkey", "qval", "vnam", "vdoc", "vkey", "dpar", "ddnt", "vdnt", "tnam",
    "tdoc", "tkey", "inam", "idim", "snam",
]  # fmt: skip
"""Every text of the model below, each once, so that it can be broken."""


def _model() -> onnx.ModelProto:
    node = onnx.NodeProto(
        name="nnam", op_type="nopt", domain="ndom", overload="novr", doc_string="ndoc"
    )
    node.input.append("ninp")
    node.output.append("nout")
    node.metadata_props.add(key="nkey", value="v")
    node.attribute.add(name="anam", ref_attr_name="aref", doc_string="adoc", type=2)
    inner = helper.make_graph([], "inam", [helper.make_tensor_value_info("x", 1, ["idim"])], [])
    node.attribute.append(helper.make_attribute("body", inner))
    tensor = numpy_helper.from_array(np.zeros(1, np.float32), "tnam")
    tensor.doc_string = "tdoc"
    tensor.metadata_props.add(key="tkey", value="v")
    value = helper.make_tensor_value_info("vnam", TensorProto.FLOAT, ["dpar"], "vdoc")
    value.type.denotation = "vdnt"
    value.type.tensor_type.shape.dim[0].denotation = "ddnt"
    value.metadata_props.add(key="vkey", value="v")
    graph = helper.make_graph([node], "gnam", [value], [], [tensor], doc_string="gdoc")
    graph.metadata_props.add(key="gkey", value="v")
    annotation = graph.quantization_annotation.add(tensor_name="qnam")
    annotation.quant_parameter_tensor_names.add(key="qkey", value="qval")
    graph.sparse_initializer.add().values.name = "snam"
    function = onnx.FunctionProto(
        name="fnam", domain="fdom", overload="fovr", doc_string="fdoc", input=["finp"]
    )
    function.attribute.append("fatt")
    function.opset_import.add(domain="fopd", version=1)
    function.metadata_props.add(key="fkey", value="v")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("odom", 1)])
    model.functions.append(function)
    model.domain = "mdom"
    model.metadata_props.add(key="mkey", value="mval")
    return model


def _broken() -> Iterator[tuple[str, onnx.ModelProto]]:
    data = _model().SerializeToString()
    for word in WORDS:
        assert data.count(word.encode()) == 1
        broken = data.replace(word.encode(), word[:2].encode() + b"\xff\xfe")
        yield word, onnx.ModelProto.FromString(broken)


def test_a_model_of_texts_is_let_through() -> None:
    reader.require_utf8(_model(), where="m.onnx")


@pytest.mark.parametrize(("word", "model"), list(_broken()), ids=WORDS)
def test_a_text_that_is_not_utf8_is_refused(word: str, model: onnx.ModelProto) -> None:
    with pytest.raises(ModelError, match="is not UTF-8") as caught:
        reader.require_utf8(model, where="m.onnx")
    assert f"b'{word[:2]}\\xff\\xfe'" in str(caught.value)


def save(path: Path, *tensors: onnx.TensorProto, **fields: object) -> Path:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([], "g", [info], [info], list(tensors))
    made = helper.make_model(graph, **fields)
    path.write_bytes(made.SerializeToString())
    return path


def test_what_really_is_in_another_file_is_told_apart(tmp_path: Path) -> None:
    other = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    other.external_data.add(key="location", value="w.data")
    (tensor,) = reader.read(save(tmp_path / "m.onnx", other)).graph.initializer
    assert reader.is_external(tensor) and reader.location(tensor) == "w.data"
    del other.external_data[:]
    (tensor,) = reader.read(save(tmp_path / "m.onnx", other)).graph.initializer
    assert reader.is_external(tensor) and reader.location(tensor) == ""


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
        reader.read(tmp_path / "m.onnx")
    assert why in str(caught.value)


def test_names_that_are_not_utf8_are_refused_everywhere(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", producer_name="maker")
    path.write_bytes(path.read_bytes().replace(b"maker", b"m\xff\xffer"))
    with pytest.raises(ModelError, match="is not UTF-8"):
        reader.read(path)


def test_a_file_beyond_2_gb_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "m.onnx").open("wb") as stream:
        stream.truncate(2**31)
    with pytest.raises(ModelError, match="beyond the 2 GB"):
        reader.read(tmp_path / "m.onnx")


BIG = np.arange(400, dtype=np.float32).reshape(20, 20)
SMALL = np.arange(5, dtype=np.int64)


def _weighted(
    *weights: onnx.TensorProto, nodes: tuple[onnx.NodeProto, ...] = ()
) -> onnx.ModelProto:
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
    return reader.read_source(DataFile.open(path), DataFolder(folder, model=path), where="m.onnx")


def _refused(folder: Path, model: onnx.ModelProto | bytes) -> str:
    with pytest.raises(ModelError) as caught:
        _read(folder, model)
    assert str(caught.value).startswith(("m.onnx", str(folder)))
    return str(caught.value)


def test_large_tensors_inside_and_outside_become_references(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(BIG, "c"))
    model = _weighted(numpy_helper.from_array(BIG, "in"), _external("out", BIG), nodes=(constant,))
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
        tmp_path,
        _weighted(numpy_helper.from_array(SMALL, "in"), _external("out", SMALL, offset)),
    )
    assert loaded.weights == []
    for tensor in loaded.proto.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), SMALL)
        assert not tensor.external_data


def test_parts_of_sparse_tensors_are_in_the_proto(tmp_path: Path) -> None:
    sparse = onnx.SparseTensorProto(
        values=_external("s", BIG.reshape(-1)), indices=_external("i", SMALL, BIG.nbytes), dims=[9]
    )
    model = _weighted()
    model.graph.sparse_initializer.append(sparse)
    (loaded,) = _read(tmp_path, model).proto.graph.sparse_initializer
    np.testing.assert_array_equal(numpy_helper.to_array(loaded.values), BIG.reshape(-1))
    np.testing.assert_array_equal(numpy_helper.to_array(loaded.indices), SMALL)


def test_an_external_tensor_may_not_have_raw_data_too(tmp_path: Path) -> None:
    tensor = _external("w", BIG)
    tensor.raw_data = BIG.tobytes()
    assert "'w' has raw_data and external data" in _refused(tmp_path, _weighted(tensor))


def test_no_file_can_name_a_range_of_the_model_itself(tmp_path: Path) -> None:
    tensor = _external("w", BIG)
    tensor.external_data[0].value = reader.STAND_IN
    assert "which is not in" in _refused(tmp_path, _weighted(tensor))


def _typed(data_type: int, count: int, dims: list[int]) -> onnx.TensorProto:
    tensor = TensorProto(name="w", data_type=data_type, dims=dims)
    getattr(tensor, helper.tensor_dtype_to_field(data_type)).extend([0] * count)
    return tensor


@pytest.mark.parametrize("count", [0, 399, 401])
def test_raw_data_fits_type_and_shape(tmp_path: Path, count: int) -> None:
    tensor = TensorProto(name="w", data_type=1, dims=[400], raw_data=bytes(4 * count))
    message = _refused(tmp_path, _weighted(tensor))
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
    assert _read(tmp_path, _weighted(_typed(data_type, count, dims))).weights == []
    message = _refused(tmp_path, _weighted(_typed(data_type, count + 1, dims)))
    assert f"'w': has {count + 1} elements, its type and shape need {count}" in message


def test_strings_fit_the_shape(tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.STRING, dims=[2], string_data=[b"a"])
    assert "has 1 elements" in _refused(tmp_path, _weighted(tensor))
    tensor.string_data.append(b"b")
    _read(tmp_path, _weighted(tensor))


def test_training_information_is_left_out(tmp_path: Path) -> None:
    model = _weighted()
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
