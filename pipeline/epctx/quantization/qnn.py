"""Float models rewritten so that QNN computes them right once they are quantized.

Constants: each node gets its own. Where nodes share quantized constants, QNN 2.7.0 can give wrong
numbers, silently. A Llama of 134 M whose equal constants were merged (weights of norms, scalars)
had a cosine of 0.50 to the quantized model from the second layer on, and 0.9993 with a constant for
each node. The constant at fault has not been found; a model of three norms alone is right either
way.

BatchNormalization goes into the weights before it, or becomes Mul and Add. QNN 2.7.0 computes a
quantized BatchNormalization wrongly for some parameters: alone with cosine 0.04, in a classifier of
PaddleOCR with 0.98. Mul and Add of the same constants are right. onnxruntime's own preprocessing is
not enough: it leaves a BatchNormalization that follows a Gemm, and gives a ConvTranspose of several
groups a bias, on which onnxruntime's quantizer fails.

Norms: torch (dynamo) writes RMSNorm as `x * Reciprocal(Sqrt(..))`. A quantized Reciprocal is wrong,
with 8 and 16 bits, even if only the nodes around it are quantized: for 0.0201, QNN 2.7.0 computes
1.045, not 49.8. `x / Sqrt(..)` is right, with the same ranges.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization.onnx_model import ONNXModel

from epctx.graph.serde import protos

_SMALL: Final = 1 << 16
"""Maximum elements of a constant that is copied: large shared weights stay shared."""


def separate_constants(model: onnx.ModelProto) -> bool:
    """Give each node of the main graph its own small float constants; return whether some were
    shared.
    """
    graph = model.graph
    small = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and math.prod(tensor.dims) <= _SMALL
    }
    used: set[str] = set()
    names = {tensor.name for tensor in graph.initializer}
    copies: list[onnx.TensorProto] = []
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name not in small:
                continue
            if name not in used:
                used.add(name)
                continue
            copy = onnx.TensorProto()
            copy.CopyFrom(small[name])
            copy.name = free(name, names)
            node.input[place] = copy.name
            copies.append(copy)
    graph.initializer.extend(copies)
    return bool(copies)


def free(name: str, taken: set[str]) -> str:
    """Reserve a name like this one that is not taken."""
    number = 1
    while f"{name}/{number}" in taken:
        number += 1
    taken.add(f"{name}/{number}")
    return f"{name}/{number}"


Array = npt.NDArray[np.float64]


class _Constants:
    """Float constants of the main graph, and the number of uses of each name."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        inputs = {value.name for value in model.graph.input}
        self._tensors = {
            tensor.name: tensor
            for tensor in model.graph.initializer
            if tensor.data_type == onnx.TensorProto.FLOAT and tensor.name not in inputs
        }
        self.uses = Counter(name for node in protos.nodes(model) for name in node.input)
        self.uses.update(value.name for value in model.graph.output)
        self.names = {*self.uses, *(name for node in protos.nodes(model) for name in node.output)}

    def array(self, name: str) -> Array | None:
        """Return the values of a constant; None if there is no such constant."""
        tensor = self._tensors.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor).astype(np.float64)

    def put(self, array: Array, name: str) -> str:
        """Set a constant, under a free name if several nodes use it; return its name."""
        if self.uses[name] != 1:
            name = free(name, self.names)
            self._tensors[name] = self._graph.initializer.add()
        self._tensors[name].CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))
        return name


def fold_batchnorms(model: onnx.ModelProto, excluded: Collection[str]) -> None:
    """Replace each BatchNormalization of the main graph that has constant parameters.

    Args:
        excluded: names of nodes that stay as they are.
    """
    graph, constants = model.graph, _Constants(model)
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*graph.value_info, *graph.input, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }
    makers = {name: node for node in graph.node for name in node.output}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        factors = None if node.name in excluded else _factors(node, constants)
        if factors is None or node.input[0] not in ranks:
            nodes.append(node)
            continue
        (x, *names), y = node.input[:3], node.output[0]
        maker = makers.get(x) if constants.uses[x] == 1 else None
        if maker is not None and _multiply(maker, node, *factors, constants):
            maker.output[0], makers[y] = y, maker
            continue
        shape = (-1, *[1] * (ranks[x] - 2))
        scale, shift = map(constants.put, (each.reshape(shape) for each in factors), names)
        scaled = free(y, constants.names)
        nodes.append(helper.make_node("Mul", [x, scale], [scaled], name=f"{node.name}/Mul"))
        nodes.append(helper.make_node("Add", [scaled, shift], [y], name=f"{node.name}/Add"))
    del graph.node[:]
    graph.node.extend(nodes)
    ONNXModel(model).clean_initializers()


def _factors(node: onnx.NodeProto, constants: _Constants) -> tuple[Array, Array] | None:
    """Return the factor and the summand of a BatchNormalization; None if the node is another one,
    trains, or has a parameter that is not constant.
    """
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if node.op_type != "BatchNormalization" or node.output[1:]:
        return None
    scale, bias, mean, variance = map(constants.array, node.input[1:])
    if scale is None or bias is None or mean is None or variance is None:
        return None
    factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    return factor, bias - mean * factor


def _multiply(
    maker: onnx.NodeProto, node: onnx.NodeProto, scale: Array, shift: Array, constants: _Constants
) -> bool:
    """Put the factors of a BatchNormalization into the constants of the node before it; return
    whether that has such constants.
    """
    attributes = {each.name: helper.get_attribute_value(each) for each in maker.attribute}
    axes = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1 - attributes.get("transB", 0)}
    grouped = maker.op_type == "ConvTranspose" and attributes.get("group", 1) > 1
    if maker.op_type not in axes or grouped:
        return False
    name = next(iter(maker.input[2:]), "")
    weights, bias = constants.array(maker.input[1]), constants.array(name) if name else np.zeros(1)
    if weights is None or bias is None:
        return False
    shape = [1] * weights.ndim
    shape[axes[maker.op_type]] = -1
    maker.input[1] = constants.put(weights * scale.reshape(shape), maker.input[1])
    bias = bias * attributes.get("beta", 1.0) * scale + shift
    maker.input[2:] = [constants.put(bias, name or node.input[2])]
    remaining = [each for each in maker.attribute if each.name != "beta"]
    del maker.attribute[:]
    maker.attribute.extend(remaining)
    return True


def divide_by_roots(model: onnx.ModelProto) -> bool:
    """Turn `Mul(x, Reciprocal(s))` of the main graph into `Div(x, s)` if nothing else uses the
    reciprocal; return whether there was one.
    """
    graph = model.graph
    uses = Counter(name for node in protos.nodes(model) for name in node.input)
    uses.update(value.name for value in graph.output)
    makers = {node.output[0]: node for node in graph.node if node.op_type == "Reciprocal"}
    unused: list[onnx.NodeProto] = []
    for node in graph.node:
        position = next((i for i, n in enumerate(node.input) if n in makers and uses[n] == 1), None)
        if node.op_type != "Mul" or position is None:
            continue
        reciprocal = makers[node.input[position]]
        node.op_type, other = "Div", node.input[1 - position]
        node.input[:] = [other, reciprocal.input[0]]
        unused.append(reciprocal)
    for node in unused:
        graph.node.remove(node)
    return bool(unused)
