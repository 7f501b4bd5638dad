"""Small models that rows spoil, put together by hand: onnx.helper refuses some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT
value = helper.make_tensor_value_info
node = helper.make_node


def weight(name: str = "w", dims: Sequence[int] = (4,), kind: int = FLOAT) -> onnx.TensorProto:
    """A sound float tensor of ones; `kind` only writes another type on it."""
    tensor = helper.make_tensor(name, FLOAT, list(dims), [1.0] * 4)
    tensor.data_type = kind
    return tensor


def graph(
    nodes: Sequence[onnx.NodeProto],
    *,
    name: str = "g",
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("y",),
    weights: Sequence[onnx.TensorProto] = (),
) -> onnx.GraphProto:
    """A graph of float[4] values."""
    return helper.make_graph(
        list(nodes),
        name,
        [value(each, FLOAT, [4]) for each in inputs],
        [value(each, FLOAT, [4]) for each in outputs],
        list(weights),
    )


def model(
    graph: onnx.GraphProto,
    *,
    opset: int = 21,
    ir_version: int = 10,
    domains: Sequence[tuple[str, int]] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model that nothing has checked."""
    imports = [helper.make_opsetid(domain, version) for domain, version in (("", opset), *domains)]
    return helper.make_model(
        graph, opset_imports=imports, ir_version=ir_version, functions=list(functions)
    )


def of(*nodes: onnx.NodeProto, **rest: Any) -> onnx.ModelProto:
    """A model of a graph of these nodes."""
    return model(graph(nodes, **rest))
