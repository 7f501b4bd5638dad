"""Inference of a whole graph and of single nodes, without reading weights."""

from __future__ import annotations

import onnx_ir as ir

from epctx.graph.passes.shapes import InferShapesPass, NodeInference
from tests.kit import onnx_text


class Unread(ir.LazyTensor):
    """A weight that fails the test if its content is asked for."""

    def __init__(self, shape: list[int], name: str) -> None:
        def read() -> ir.TensorProtocol:
            raise AssertionError(f"{name} was read")

        super().__init__(read, ir.DataType.FLOAT, ir.Shape(shape), name=name)


def bare(text: str, **kwargs: str) -> ir.Model:
    model = onnx_text.model(text, infer=False, **kwargs)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape, value.type = None, None
    return model


def test_infers_without_reading_weights_and_puts_them_back() -> None:
    model = bare(
        "g (float[2,512] x) => (float[N,M] y) <float w = {1}> { a = MatMul(x, w) y = Neg(a) }"
    )
    weight = model.graph.initializers["w"]
    weight.const_value = unread = Unread([512, 3], "w")
    weight.shape = ir.Shape([512, 3])
    result = InferShapesPass()(model)
    assert model.graph[0].outputs[0].shape == ir.Shape([2, 3])
    assert model.graph.outputs[0].shape == ir.Shape([2, 3])
    assert getattr(result, "changed", None) == {"values": 2}
    assert weight.const_value is unread
    assert not InferShapesPass()(model).modified


def test_keeps_what_is_known_and_names_of_dimensions() -> None:
    model = onnx_text.model("g (float[batch,3] x) => (float[batch,3] y) { a = Relu(x) y = Neg(a) }")
    model.graph[0].outputs[0].shape = ir.Shape([7, None])
    InferShapesPass()(model)
    a = model.graph[0].outputs[0].shape
    assert a is not None
    assert a[1] == 3
    assert model.graph.outputs[0].shape == ir.Shape(["batch", 3])


def test_a_model_that_onnx_cannot_infer_is_left_as_it_is() -> None:
    model = bare("g (float[2] x) => (float[2] y) { a = custom.Op(x) y = custom.Op(a) }",
                 opsets='"" : 21, "custom" : 1')  # fmt: skip
    assert not InferShapesPass()(model).modified


def test_infers_one_node_by_what_its_inputs_hold() -> None:
    model = bare(
        "g (float[2,6] x) => (float[N,M,K] y) <int64[3] s = {2,-1,2}> { y = Reshape(x, s) }"
    )
    model.graph.outputs[0].shape = None
    (node,) = model.graph
    inference = NodeInference(model)
    assert inference.infer(node) == [node.outputs[0]]
    assert node.outputs[0].shape == ir.Shape([2, 3, 2])
    assert inference.infer(node) == []


def test_one_node_that_is_unknown_or_wrong_infers_nothing() -> None:
    model = bare(
        "g (float[2,6] x) => (float[N] y, float[N] z) <float[3] w = {1,2,3}>"
        " { y = custom.Op(x) z = Add(x, w) }",
        opsets='"" : 21, "custom" : 1',
    )
    inference = NodeInference(model)
    assert [inference.infer(node) for node in model.graph] == [[], []]


def test_a_node_whose_types_no_operator_has_is_left_alone() -> None:
    model = bare("g (float[2] x, float16[1] r) => (float[N] y) { y = Tile(x, r) }")
    assert NodeInference(model).infer(model.graph[0]) == []
