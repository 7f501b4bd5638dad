"""Every tensor of a model is reached, and put back."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from epctx.graph.weights import tensors
from tests.kit import onnx_text


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
