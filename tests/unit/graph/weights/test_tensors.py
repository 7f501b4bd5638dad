"""Every tensor of a model is reached, and put back."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

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
