import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from epctx.graph.weights import kinds


def model(op_type: str, dtype: int, dims: list[int]) -> ir.Model:
    """A node that uses a weight, whose data is in no file."""
    weight = TensorProto(name="w", data_type=dtype, dims=dims, data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="gone")
    node = helper.make_node(op_type, ["x", "w"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:], [weight])
    return ir.from_proto(onnx.helper.make_model(graph))


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
    assert kinds.counts(model(op_type, dtype, [4, 6]).graph.initializers.values()) == counted
