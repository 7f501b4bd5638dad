"""What a graph says of the values of its inputs: ranges outside of which their consumer refuses.

An index past its table ends a run with an error, an integer divided by zero the process, the
logarithm of a negative number in NaN. What is quantized first fills the range of its integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import onnx

Range = tuple[float, float]
"""Both ends included."""
Shape = tuple[int, ...]

_PASSING: Final = frozenset(
    {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Ops whose output has the values of their first input."""
_DOMAINS: Final[Mapping[str, Range]] = {
    "Acos": (-1, 1),
    "Acosh": (1, 4),
    "Asin": (-1, 1),
    "Atanh": (-0.99, 0.99),
    "Log": (2**-10, 4),
    "Sqrt": (0, 4),
}
"""Of functions that are not defined everywhere: where they are."""
_SIZES: Final[Mapping[tuple[str, int], Range]] = {
    ("ConstantOfShape", 0): (1, 4),
    ("Expand", 1): (1, 1),
    ("GRU", 4): (1, 1),
    ("LSTM", 4): (1, 1),
    ("RNN", 4): (1, 1),
    ("Range", 2): (1, 1),
    ("Tile", 1): (1, 1),
    ("TopK", 1): (1, 1),
}
"""Inputs, by op and place, that are sizes, counts or steps: values that always fit."""
_INTEGERS: Final = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
"""Integer types of onnx.TensorProto, from UINT8 to UINT64."""
_ONLY: Final = {"Div": _INTEGERS, "Mod": _INTEGERS, "QuantizeLinear": frozenset({1, 10, 11, 16})}
"""Types of inputs, by op, that its range is for; the last ones are the floating types."""
_BITS: Final = {2: 8, 3: 8, 4: 16, 5: 16, 21: 4, 22: 4}
"""Bits of the integers that QuantizeLinear makes: UINT8, INT8, UINT16, INT16, UINT4, INT4."""
_SIGNED: Final = frozenset({3, 5, 22})
_EMBEDDED: Final = ((0, 2), (1, 4))
"""Of EmbedLayerNormalization: places of indices and of their tables."""


def ranges(graph: onnx.GraphProto) -> dict[str, Range]:
    """For inputs of the main graph, by name, what all their consumers take.

    Random token ids then reach the whole embedding table without a line in the manifest.
    """
    kinds = {v.name: v.type.tensor_type.elem_type for v in graph.input}
    constants = _constants(graph)
    shapes = _shapes(graph, constants)
    weights = {tensor.name for tensor in graph.initializer}
    origin = {info.name: info.name for info in graph.input if info.name not in weights}
    found: dict[str, Range] = {}
    for node in graph.node:
        if node.op_type in _PASSING and node.input and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        for place, allowed in (*_allowed(node, shapes), *_quantized(node, constants)):
            name = origin.get(node.input[place]) if place < len(node.input) else None
            if name is not None and kinds[name] in _ONLY.get(node.op_type, kinds.values()):
                known = found.get(name, (-math.inf, math.inf))
                both = (max(known[0], allowed[0]), min(known[1], allowed[1]))
                found[name] = both if both[0] <= both[1] else known
    return found


def _allowed(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> Iterator[tuple[int, Range]]:
    """Places of a node's inputs whose values it takes in a range only."""
    op = node.op_type
    if op in _DOMAINS:
        yield 0, _DOMAINS[op]
    if op in ("Div", "Mod"):
        yield 1, (1, 4)
    for place in range(len(node.input)):
        if (op, place) in _SIZES:
            yield place, _SIZES[op, place]
    if op in ("Gather", "GatherElements", "ScatterElements"):
        table = shapes.get(node.input[0], ())
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if -len(table) <= axis < len(table):
            yield from _index(1, table[axis])
    elif op in ("GatherND", "ScatterND"):
        yield from _index(1, min(shapes.get(node.input[0], (0,)), default=0))
    elif op == "EmbedLayerNormalization":
        for place, rows in _EMBEDDED:
            if rows < len(node.input):
                yield from _index(place, next(iter(shapes.get(node.input[rows], ())), 0))


def _quantized(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]
) -> Iterator[tuple[int, Range]]:
    """The values of a node's first input that it quantizes, without saturation, by one scale."""
    if node.op_type != "QuantizeLinear" or len(node.input) < 2:
        return
    scale, zero = _number(constants.get(node.input[1])), 0.0
    kind = next((a.i for a in node.attribute if a.name == "output_dtype" and a.i), 2)
    if len(node.input) > 2 and node.input[2]:
        tensor = constants.get(node.input[2])
        kind, zero = 0 if tensor is None else tensor.data_type, _number(tensor)
    steps = 2 ** _BITS.get(kind, 0) - 1
    low = -(steps + 1) / 2 * (kind in _SIGNED) - zero
    if steps and 0 < scale < math.inf and low <= 0 <= low + steps:
        yield 0, (low * scale, (low + steps) * scale)


def _number(tensor: onnx.TensorProto | None) -> float:
    """The number of a constant; NaN if it is not one number that is in the model itself."""
    from onnx import numpy_helper

    if tensor is None or tensor.data_location == tensor.EXTERNAL:
        return math.nan
    try:
        (number,) = numpy_helper.to_array(tensor).reshape(-1).astype(float)
    except (ValueError, TypeError, KeyError):
        return math.nan
    return float(number)


def _index(place: int, size: int) -> Iterator[tuple[int, Range]]:
    if size > 0:
        yield place, (0, float(size - 1))


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    nodes = (node for node in graph.node if node.op_type == "Constant")
    found = {n.output[0]: a.t for n in nodes for a in n.attribute if a.name == "value"}
    return found | {tensor.name: tensor for tensor in graph.initializer}


def _shapes(graph: onnx.GraphProto, constants: Mapping[str, onnx.TensorProto]) -> dict[str, Shape]:
    """Shapes of values as far as the model says them; a size that it leaves open is 0."""
    found: dict[str, Shape] = {}
    for value in (*graph.value_info, *graph.input):
        dims = value.type.tensor_type.shape.dim
        found[value.name] = tuple(max(dim.dim_value, 0) for dim in dims)
    return found | {name: tuple(tensor.dims) for name, tensor in constants.items()}
