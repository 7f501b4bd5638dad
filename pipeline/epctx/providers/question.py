"""Models of one node, by which epctx asks ONNX Runtime whether it has a kernel for the node.

Such a model has no weights except the tensors in the node's attributes, which may decide whether a
kernel can be made. These tensors are held in memory, since a model from bytes cannot refer to a
file.
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
"""IR version of the question. No kernel depends on it, and ONNX Runtime refuses IR versions that it
does not know."""

Shapes = Literal["whole", "ranks", "none"]
"""How much of the known input shapes a question has: whole shapes, ranks or none."""
_SMALL: Final = 1024
"""Size in bytes. Smaller weights of a body stay in the question; the others become inputs."""


def make(model: ir.Model, node: ir.Node, used: Sequence[ir.Value], *, shapes: Shapes) -> ir.Model:
    """Make a model of the one node. The node's inputs become graph inputs with a type, and a shape
    as `shapes` says.

    Args:
        model: the node's model; it is not changed.
        used: all values that the node and its bodies use.
        shapes: how much of the known shapes the inputs get.
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
    """Take the large initializers and Constants out of a body, since their content does not
    matter.
    """
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
                replacement = ir.Value(type=ir.TensorType(tensor.dtype), shape=shape)
                uses.replace_all(value, replacement)
                body.remove(node)
                yield replacement


def _is_weight(value: ir.Value, tensor: ir.TensorProtocol | None) -> bool:
    """Tell whether a tensor is large and may become an input. An output of the body may not, since
    the body must compute it.
    """
    return tensor is not None and tensor.nbytes >= _SMALL and not value.is_graph_output()


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if not isinstance(tensor, MappedTensor):
        return tensor
    shape = ir.Shape(tensor.shape.numpy())
    return ir.Tensor(tensor.numpy(), tensor.dtype, shape=shape, name=tensor.name)
