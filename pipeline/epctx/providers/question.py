"""Models of one node, which ONNX Runtime is asked about: is there a kernel for it?

No weight goes into it but what the node itself holds: a tensor in an attribute may decide whether a
kernel can be made, and a reference to a file says nothing to a model that is in none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import onnx_ir as ir

from epctx.graph import uses
from epctx.graph.dataflow import subgraphs
from epctx.graph.weights import tensors
from epctx.graph.weights.tensors import MappedTensor

_IR_VERSION: Final = 10
"""A kernel does not depend on it, and ONNX Runtime refuses those it is new to."""

Shapes = Literal["whole", "ranks", "none"]
"""Part of the known input shapes that a question has."""
_SMALL: Final = 1024
"""Bytes: a body's weights below this size stay in the question; the others are inputs."""


def make(model: ir.Model, node: ir.Node, used: Sequence[ir.Value], *, shapes: Shapes) -> ir.Model:
    """Make a model of the one node. Its inputs are graph inputs, of known type and maybe shape.

    Args:
        model: the node's, which stays as it is.
        used: all that the node takes, its bodies included.
        shapes: what the inputs have of the shapes that are known.
    """
    graph = ir.GraphView(
        used,
        [value for value in node.outputs if value.name],
        nodes=[node],
        opset_imports=dict(model.opset_imports),
        name="question",
    ).clone()
    for value in graph.inputs:
        if value.shape is not None and shapes != "whole":
            value.shape = ir.Shape([None] * len(value.shape)) if shapes == "ranks" else None
    for value in graph.outputs:
        value.shape = None
    for body in subgraphs(graph[0]):
        graph.inputs.extend(_weights(body))
    for place, value in enumerate(graph.inputs):
        value.const_value = None
        value.name = f"question_{place}"
    question = ir.Model(graph, ir_version=_IR_VERSION, functions=tuple(model.functions.values()))
    tensors.replace_all(question, _in_memory)
    return question


def _weights(body: ir.Graph) -> Iterator[ir.Value]:
    """Take the large initializers and Constants out of a body: what they hold does not matter."""
    for name, value in list(body.initializers.items()):
        if _is_weight(value, value.const_value):
            del body.initializers[name]
            yield value
    for node in list(body):
        held = node.attributes.get("value")
        if (node.domain, node.op_type) == ("", "Constant") and held is not None:
            value, tensor = node.outputs[0], held.as_tensor()
            if _is_weight(value, tensor):
                shape = ir.Shape(tensor.shape.numpy())
                known = ir.Value(type=ir.TensorType(tensor.dtype), shape=shape)
                uses.replace_all(value, known)
                body.remove(node)
                yield known


def _is_weight(value: ir.Value, tensor: ir.TensorProtocol | None) -> bool:
    """Tell whether a tensor is large, and no output of its body, which ONNX Runtime must make
    there.
    """
    return tensor is not None and tensor.nbytes >= _SMALL and not value.is_graph_output()


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if not isinstance(tensor, MappedTensor):
        return tensor
    shape = ir.Shape(tensor.shape.numpy())
    return ir.Tensor(tensor.numpy(), tensor.dtype, shape=shape, name=tensor.name)
