"""Models around a QNN context binary: types, names and conversions."""

from __future__ import annotations

import pytest

from epctx.errors import InvalidGraph
from epctx.providers.base import BinaryGraph, BinaryTensor
from epctx.providers.onnxruntime.qnn import wrapper
from epctx.providers.onnxruntime.qnn.binary import QnnBinary, QnnContext


def binary(*graphs: BinaryGraph, more: tuple[BinaryGraph, ...] = ()) -> QnnBinary:
    contexts = tuple(
        QnnContext(
            build_id="v2.51", api="2.40.0", blob="4.0.6", blob_size=1, size=2, soc_model=chip,
            graphs=each,
        )
        for chip, each in ((60, graphs), *(((43, more),) if more else ()))
    )  # fmt: skip
    return QnnBinary(contexts=contexts, shared=1 if more else None)


def graph(**dtypes: str) -> BinaryGraph:
    x, *rest = (
        BinaryTensor(name=name, dtype=dtype, shape=(1, 4), scale=0.5, zero_point=3)
        for name, dtype in dtypes.items()
    )
    return BinaryGraph(name="g", inputs=(x,), outputs=tuple(rest))


def ops(made: QnnBinary, *, quantized: bool = False) -> list[str]:
    (model,) = wrapper.models(made, "m.bin", source="QNN", quantized=quantized).values()
    return [node.op_type for node in model.graph]


def test_integers_of_8_and_16_bits_are_converted_others_stay() -> None:
    wide = graph(x="ufixed_point_16", y="sfixed_point_32")
    assert ops(binary(wide)) == ["QuantizeLinear", "EPContext"]
    assert ops(binary(wide), quantized=True) == ["EPContext"]
    tensor = BinaryTensor(name="x", dtype="ufixed_point_8", shape=(2,))
    per_axis = BinaryGraph(name="g", inputs=(tensor,), outputs=graph(x="int_8", y="bool_8").outputs)
    assert ops(binary(per_axis)) == ["EPContext"]


def test_conversions_have_the_scale_and_zero_point_of_the_binary() -> None:
    made = binary(graph(x="ufixed_point_8", y="sfixed_point_16"))
    (model,) = wrapper.models(made, "m.bin", source="QNN", quantized=False).values()
    constants = {
        name: value.const_value.numpy()
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
    }
    assert {n: (str(a.dtype), a.item()) for n, a in constants.items()} == {
        "x_scale": ("float32", 0.5), "x_zp": ("uint8", 3),
        "y_scale": ("float32", 0.5), "y_zp": ("int16", 3),
    }  # fmt: skip
    assert [value.name for value in (*model.graph.inputs, *model.graph.outputs)] == ["x_dq", "y_dq"]


def test_a_binary_for_several_chips_says_so_in_the_node() -> None:
    made = binary(graph(x="float_32", y="float_16"), more=(graph(x="float_32", y="float_16"),))
    (model,) = wrapper.models(made, "m.bin", source="QNN", quantized=False).values()
    assert model.graph[0].attributes["is_multi_soc_ep_context"].as_int() == 1
    with pytest.raises(InvalidGraph, match="differ between its chips"):
        ops(binary(graph(x="float_32", y="float_16"), more=(graph(x="float_32", z="float_16"),)))


@pytest.mark.parametrize(
    ("dtypes", "why"),
    [
        ({"x": "ufixed_point_4", "y": "float_32"}, "x of graph g is ufixed_point_4"),
        ({"x": "float_32"}, "has no outputs"),
        ({"x": "ufixed_point_8", "x_dq": "float_32"}, "are named 'x', 'x_dq'"),
        ({"x": "float_32", "": "float_32"}, "are named 'x', ''"),
    ],
)
def test_values_that_onnx_does_not_have_are_refused(dtypes: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidGraph, match=why):
        ops(binary(graph(**dtypes)))
