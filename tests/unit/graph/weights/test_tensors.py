"""Mapped tensors, and replacing the tensors of a model."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from epctx.files.digest import HashingWriter
from epctx.graph.weights import tensors
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.tensors import MappedTensor, content_digest
from tests.kit import onnx_text


def _file(folder: Path, data: bytes, name: str = "weights.bin") -> DataFile:
    (folder / name).write_bytes(data)
    return DataFile.open(folder / name)


def _tensor(file: DataFile, offset: int, dtype: ir.DataType, *shape: int) -> MappedTensor:
    return MappedTensor(file, offset, dtype, shape=ir.Shape(shape), name="w")


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.int64).reshape(3, 2),
        np.array([True, False, True]),
        np.array(2.5, dtype=np.float64),
        np.array([1 + 2j], dtype=np.complex64),
        np.arange(6).astype(np.float16),
        np.arange(6).astype(ml_dtypes.bfloat16),
        np.arange(6).astype(ml_dtypes.float8_e4m3fn),
        np.arange(-4, 3).astype(ml_dtypes.int4),
        np.arange(7).astype(ml_dtypes.uint4),
        np.array([0.5, 1, 6], dtype=ml_dtypes.float4_e2m1fn),
        np.array([0, 1, 2, 3, 1], dtype=ml_dtypes.uint2),
    ],
    ids=lambda values: values.dtype.name,
)
def test_values_are_what_onnx_stores_at_any_offset(tmp_path: Path, values: np.ndarray) -> None:
    raw = ir.tensor(values).tobytes()
    file = _file(tmp_path, b"odd" + raw + b"rest")
    tensor = _tensor(file, 3, ir.tensor(values).dtype, *values.shape)

    assert tensor.nbytes == len(raw)
    assert tensor.numpy().dtype == values.dtype
    np.testing.assert_array_equal(tensor.numpy(), values)
    np.testing.assert_array_equal(np.asarray(tensor), values)
    assert tensor.tobytes() == raw
    assert b"".join(tensor.chunks()) == raw
    assert tensor.digest() == content_digest(ir.tensor(values))
    with (tmp_path / "out").open("wb") as stream:
        tensor.tofile(HashingWriter(stream))
    assert (tmp_path / "out").read_bytes() == raw


def test_numpy_is_a_read_only_view_of_the_map(tmp_path: Path) -> None:
    file = _file(tmp_path, np.arange(8, dtype=np.float32).tobytes())
    array = _tensor(file, 0, ir.DataType.FLOAT, 8).numpy()
    assert np.shares_memory(array, np.frombuffer(file.view(), np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_a_tensor_without_values_is_in_an_empty_file(tmp_path: Path) -> None:
    tensor = _tensor(_file(tmp_path, b""), 0, ir.DataType.FLOAT, 0, 3)
    assert tensor.numpy().shape == (0, 3)


def test_values_outlive_their_file_object(tmp_path: Path) -> None:
    array = _tensor(_file(tmp_path, bytes([7] * 64)), 0, ir.DataType.UINT8, 64).numpy()
    (tmp_path / "weights.bin").unlink()
    assert (array == 7).all()


def test_release_of_a_tensor_keeps_its_values(tmp_path: Path) -> None:
    tensor = _tensor(_file(tmp_path, bytes(16)), 0, ir.DataType.FLOAT, 4)
    tensor.release()
    assert (tensor.numpy() == 0).all()


def test_content_digest_of_strings_tells_their_borders() -> None:
    def digest(*elements: bytes) -> object:
        return content_digest(ir.StringTensor(elements, shape=ir.Shape([len(elements)])))

    assert digest(b"ab", b"c") != digest(b"a", b"bc")
    assert digest(b"ab", b"c") == digest(b"ab", b"c")


def build() -> ir.Model:
    model = onnx_text.model(
        "g (bool c, float[1] x) => (float[1] y) <float[1] w = {1}> {"
        " k = Constant<value = float[1] {2}>() a = Add(x, w) b = Mul(a, k) y = If(c) <"
        " then_branch = t () => (float[1] u) <float[1] v = {3}> { u = Add(b, v) },"
        " else_branch = e () => (float[1] z) { l = Constant<value = float[1] {4}>()"
        "   z = Add(b, l) }> }"
    )
    body = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    tensor = ir.tensor(np.array([5], np.float32))
    body.append(ir.Node("", "Constant", [], attributes=[ir.AttrTensor("value", tensor)]))
    function = ir.Function("local", "f", graph=body, attributes=[])
    model.functions[function.identifier()] = function
    many = ir.AttrTensors("many", [ir.tensor(np.array([6], np.float32))])
    model.graph[0].attributes["many"] = many
    return model


def contents(model: ir.Model) -> list[float]:
    found: list[float] = []

    def note(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        found.append(float(tensor.numpy()[0]))
        return tensor

    tensors.replace_all(model, note)
    return sorted(found)


def negated(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(-tensor.numpy(), name=tensor.name)


def test_reaches_initializers_attributes_subgraphs_and_functions() -> None:
    model = build()
    assert contents(model) == [1, 2, 3, 4, 5, 6]
    tensors.replace_all(model, negated)
    assert contents(model) == [-6, -5, -4, -3, -2, -1]


def test_puts_everything_back_whatever_happens() -> None:
    model = build()
    with pytest.raises(KeyError), tensors.replaced(model, negated):
        assert contents(model) == [-6, -5, -4, -3, -2, -1]
        raise KeyError
    assert contents(model) == [1, 2, 3, 4, 5, 6]


def weighted(op_type: str, dtype: int, dims: list[int]) -> ir.Model:
    """A node that uses a weight, whose data is in no file."""
    weight = TensorProto(name="w", data_type=dtype, dims=dims, data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="gone")
    node = helper.make_node(op_type, ["x", "w"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:], [weight])
    return ir.from_proto(helper.make_model(graph))


@pytest.mark.parametrize(
    ("op_type", "dtype", "counted"),
    [
        ("MatMul", TensorProto.FLOAT16, {"float": 24}),
        ("MatMulInteger", TensorProto.INT8, {"integer": 24}),
        ("MatMulNBits", TensorProto.UINT8, {"4-bit": 48}),
        ("MatMulNBits", TensorProto.FLOAT, {"float": 24}),
        ("DequantizeLinear", TensorProto.INT4, {"4-bit": 24}),
        ("StringNormalizer", TensorProto.STRING, {"integer": 24}),
    ],
)
def test_weights_are_counted_by_kind_and_not_read(
    op_type: str, dtype: int, counted: dict[str, int]
) -> None:
    assert (
        tensors.counts_by_kind(weighted(op_type, dtype, [4, 6]).graph.initializers.values())
        == counted
    )
