"""One fault in a model: what a compiler, a converter or a flipped bit can do to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

Fault = Callable[[onnx.ModelProto, np.random.Generator], str | None]
"""Changes a model in place and says where; None: there is no place for it."""

OTHERS: Final[Mapping[str, str]] = {
    "Relu": "Abs",
    "HardSwish": "Relu",
    "LeakyRelu": "Relu",
    "Gelu": "Relu",
    "Sigmoid": "Tanh",
    "HardSigmoid": "Sigmoid",
    "Tanh": "Sigmoid",
    "Add": "Sub",
    "Mul": "Add",
    "Div": "Mul",
    "MaxPool": "AveragePool",
    "Sqrt": "Abs",
    "ReduceMean": "ReduceMax",
    "GlobalAveragePool": "GlobalMaxPool",
    "Softmax": "LogSoftmax",
}
"""Another op that takes the same inputs."""


def weight(model: onnx.ModelProto, rng: np.random.Generator) -> str | None:
    """One element of a weight has another sign, and eight times its size."""
    return _edit(model, rng, lambda w: w.ndim >= 2, _one_element)


def channel(model: onnx.ModelProto, rng: np.random.Generator) -> str | None:
    """Two output channels of a weight are exchanged."""
    return _edit(model, rng, lambda w: w.ndim >= 2 and max(w.shape[0], w.shape[-1]) > 1, _exchange)


def bias(model: onnx.ModelProto, rng: np.random.Generator) -> str | None:
    """A bias is missing."""
    return _edit(model, rng, lambda w: w.ndim == 1 and w.size > 1, _zero)


def order(model: onnx.ModelProto, rng: np.random.Generator) -> str | None:
    """Two inputs of a node are exchanged."""
    named = {"Sub", "Div", "Concat", "Where", "BatchNormalization", "LSTM", "GRU"}
    nodes = [node for node in model.graph.node if node.op_type in named]
    nodes += [n for n in model.graph.node if n.op_type == "MatMul" and _square(model, n)]
    if not nodes:
        return None
    node = nodes[int(rng.integers(len(nodes)))]
    first = {"BatchNormalization": 1, "Where": 1}.get(node.op_type, 0)
    if node.op_type in ("LSTM", "GRU"):
        first = 1
        if _shape(model, node.input[1]) != _shape(model, node.input[2]):
            return None
    second = first + 1
    node.input[first], node.input[second] = node.input[second], node.input[first]
    return f"{node.name}: inputs {first} and {second}"


def op(model: onnx.ModelProto, rng: np.random.Generator) -> str | None:
    """A node is another one."""
    nodes = [node for node in model.graph.node if node.op_type in OTHERS]
    if not nodes:
        return None
    node = nodes[int(rng.integers(len(nodes)))]
    was, node.op_type = node.op_type, OTHERS[node.op_type]
    if was == "LeakyRelu":
        del node.attribute[:]
    return f"{node.name}: {was} is {node.op_type}"


def scale(model: onnx.ModelProto, rng: np.random.Generator) -> str | None:
    """A quantization scale is one and a half times itself, on both sides of it or on one."""
    names = [n.input[1] for n in model.graph.node if n.op_type.endswith("QuantizeLinear")]
    if not names:
        return None
    found = _initializer(model, names[int(rng.integers(len(names)))])
    _replace(found, numpy_helper.to_array(found) * np.float32(1.5))
    return str(found.name)


FAULTS: Final[Mapping[str, Fault]] = {
    "weight": weight,
    "channel": channel,
    "bias": bias,
    "order": order,
    "op": op,
    "scale": scale,
}


def mutants(
    model: onnx.ModelProto, kind: str, count: int, seed: int = 0
) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Up to `count` models with one fault each, at different places, with the place's name."""
    rng = np.random.default_rng([seed, list(FAULTS).index(kind)])
    seen: set[str] = set()
    for _ in range(8 * count):
        mutant = onnx.ModelProto()
        mutant.CopyFrom(model)
        place = FAULTS[kind](mutant, rng)
        if place is None or place in seen:
            continue
        seen.add(place)
        yield place, mutant
        if len(seen) == count:
            return


def _edit(
    model: onnx.ModelProto,
    rng: np.random.Generator,
    wanted: Callable[[np.ndarray], bool],
    change: Callable[[np.ndarray, np.random.Generator], np.ndarray],
) -> str | None:
    scales = {n.input[1] for n in model.graph.node if n.op_type.endswith("QuantizeLinear")}
    found = [
        tensor
        for tensor in model.graph.initializer
        if tensor.name not in scales
        and tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.INT8)
        and wanted(numpy_helper.to_array(tensor))
    ]
    if not found:
        return None
    tensor = found[int(rng.integers(len(found)))]
    _replace(tensor, change(numpy_helper.to_array(tensor).copy(), rng))
    return str(tensor.name)


def _one_element(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    flat = values.reshape(-1)
    at = int(rng.integers(flat.size))
    if values.dtype == np.int8:
        flat[at] = -127 if flat[at] > 0 else 127
    else:
        flat[at] *= -8
    return values


def _exchange(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    axis = 0 if values.ndim > 3 else values.ndim - 1
    if values.shape[axis] < 2:
        axis = int(np.argmax(values.shape))
    one, other = rng.choice(values.shape[axis], 2, replace=False)
    order = np.arange(values.shape[axis])
    order[one], order[other] = other, one
    return np.take(values, order, axis=axis)


def _zero(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.zeros_like(values)


def _initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    (found,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
    assert isinstance(found, onnx.TensorProto)
    return found


def _replace(tensor: onnx.TensorProto, values: np.ndarray) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))


def _shape(model: onnx.ModelProto, name: str) -> tuple[int, ...]:
    return tuple(_initializer(model, name).dims)


def _square(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Whether both inputs of a product are made by nodes and have one shape, a square."""
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in model.graph.value_info
    }
    left, right = (shapes.get(name) for name in node.input[:2])
    return left is not None and left == right and left[-1] == left[-2]
