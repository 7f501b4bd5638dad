"""The lowest IR version, and the opsets in use."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from epctx.graph.serde.encoder import lowest_ir_version
from epctx.graph.serde.ordering import order


def _model(dtype: ir.DataType, opset: int, *, inside: bool = False) -> ir.Model:
    value = ir.Value(name="x", type=ir.TensorType(dtype), shape=ir.Shape([1]))
    node = ir.Node("", "Identity", [value], outputs=[ir.Value(name="y", type=value.type)])
    imports = {"": opset, "mine": 3}
    if not inside:
        graph = ir.Graph([value], [node.outputs[0]], nodes=[node], opset_imports=imports)
        return ir.Model(graph, ir_version=13)
    body = ir.Graph([value], [node.outputs[0]], nodes=[node], name="body")
    outer = ir.Node("mine", "Each", [], [ir.AttrGraph("body", body)], outputs=[ir.Value(name="z")])
    graph = ir.Graph([], [outer.outputs[0]], nodes=[outer], opset_imports=imports)
    return ir.Model(graph, ir_version=13)


def _lowest(model: ir.Model) -> int:
    return lowest_ir_version(model, order(model.graph))


@pytest.mark.parametrize(
    ("opset", "version"), [(7, 8), (17, 8), (18, 8), (19, 9), (21, 10), (23, 11), (25, 13)]
)
def test_an_opset_needs_the_version_it_came_with(opset: int, version: int) -> None:
    assert _lowest(_model(ir.DataType.FLOAT, opset)) == version


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("dtype", "version"),
    [
        (ir.DataType.BFLOAT16, 8),
        (ir.DataType.FLOAT8E4M3FN, 9),
        (ir.DataType.INT4, 10),
        (ir.DataType.FLOAT4E2M1, 11),
        (ir.DataType.FLOAT8E8M0, 12),
        (ir.DataType.UINT2, 13),
    ],
)
def test_a_data_type_needs_the_version_it_came_with(
    dtype: ir.DataType, version: int, inside: bool
) -> None:
    assert _lowest(_model(dtype, 17, inside=inside)) == version


def test_a_type_of_a_constant_counts() -> None:
    model = _model(ir.DataType.FLOAT, 17)
    constant = ir.AttrTensor("value", ir.tensor([1, 2], dtype=ir.DataType.INT4))
    model.graph.append(ir.Node("", "Constant", [], [constant], outputs=[ir.Value(name="c")]))
    assert _lowest(model) == 10
