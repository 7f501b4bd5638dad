"""Inputs of a model: their types and shapes, and the ranges of values that the graph implies.

Ranges come from the graph, the metadata and names. Some ranges are binding. An index beyond its
table ends a run with an error, an integer division by zero ends the process, and the logarithm of a
negative number is NaN. Other ranges are plausible. An image that is first divided by 255 has values
up to 255, and an input that is compared with 16000 is 16000.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    import onnx


Range = tuple[float, float]
"""Lowest and highest value, both included."""
Shape = tuple[int, ...]


class Hint(NamedTuple):
    """A range, both ends included, and the reason for it in words.

    Attributes:
        values: the input's values, in order; empty if any values in the range serve.
    """

    low: float
    high: float
    why: str
    values: tuple[float, ...] = ()


_PASSING: Final = frozenset(
    {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
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
"""Input ranges of functions that are not defined everywhere."""
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
"""Values that always fit inputs that are sizes, counts or steps, by op and input position."""
_INTEGERS: Final = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
"""Integer types of onnx.TensorProto, from UINT8 to UINT64."""
_WIDE: Final = frozenset({6, 7, 12, 13})
"""Integer types of 32 and 64 bits; narrower integers are data, and take all values."""
_ONLY: Final = {"Div": _INTEGERS, "Mod": _INTEGERS, "QuantizeLinear": frozenset({1, 10, 11, 16})}
"""Input types for which an op's range holds; those of QuantizeLinear are the floating types."""
_BITS: Final = {2: 8, 3: 8, 4: 16, 5: 16, 21: 4, 22: 4}
"""Bits of the integers that QuantizeLinear makes: UINT8, INT8, UINT16, INT16, UINT4, INT4."""
_SIGNED: Final = frozenset({3, 5, 22})
_EMBEDDED: Final = ((0, 2), (1, 4))
"""Input positions of indices and of their tables in EmbedLayerNormalization."""


_PIXELS: Final = {
    "NominalRange_0_255": (0, 255),
    "NominalRange_16_235": (16, 235),
    "Normalized_0_1": (0, 1),
    "Normalized_1_1": (-1, 1),
}
"""Ranges by value of the metadata key `Image.NominalPixelRange`. Source:
onnx/docs/MetadataProps.md.
"""
_LARGE: Final = 64
"""Least divisor that marks values as pixels; a factor counts by its inverse."""
_NAMED: Final = (
    (re.compile(r"mask", re.IGNORECASE), Hint(0, 1, "a mask, by its name")),
    (
        re.compile(r"^sr$|sampl\w{0,99}rate", re.IGNORECASE),
        Hint(16000, 16000, "a rate, by its name"),
    ),
)
"""Hints by the name of an input, which win over plausible ranges from its uses."""
_FLOATS_NAMED: Final = (
    (re.compile(r"(^|_)mel|fbank", re.IGNORECASE), Hint(-8, 2, "log-mel features, by its name")),
    (re.compile(r"audio|wav|speech|pcm|signal", re.IGNORECASE), Hint(-1, 1, "sound, by its name")),
)
"""Hints by the name of a floating-point input, for inputs without any other hint."""
_FIRST: Final = frozenset({"BatchNormalization", "Div", "Mul", "Sub"})
"""Ops from which the range of an image follows."""
_ARITHMETIC: Final = frozenset({"Add", "Div", "Gemm", "MatMul", "Mul", "Pow", "Sub"})
_FLOATS: Final = frozenset({1, 10, 11, 16})
_Uses = Sequence[tuple["onnx.NodeProto", int, bool]]
"""Consumers of an input: the node, the input's position, and whether it was cast before."""


def range_hints(model: onnx.ModelProto) -> dict[str, Hint]:
    """Return ranges of inputs of the main graph, by name; inputs that take any value have none.

    The hints let random token ids reach the whole embedding table without a line in the manifest.
    """
    graph = model.graph
    constants = _constants(graph)
    shapes = _shapes(graph, constants)
    weights = {tensor.name for tensor in graph.initializer}
    fed = [info for info in graph.input if info.name not in weights]
    origin = {info.name: (info.name, False) for info in fed}
    uses: dict[str, list[tuple[onnx.NodeProto, int, bool]]] = {info.name: [] for info in fed}
    for node in graph.node:
        for place, value in enumerate(node.input):
            if value in origin:
                name, cast = origin[value]
                uses[name].append((node, place, cast))
        if node.op_type in _PASSING and node.input and node.input[0] in origin:
            name, cast = origin[node.input[0]]
            origin[node.output[0]] = (name, cast or node.op_type == "Cast")
    pixels = {entry.key: entry.value for entry in model.metadata_props}
    hints: dict[str, Hint] = {}
    for info in fed:
        kind, image = info.type.tensor_type.elem_type, len(info.type.tensor_type.shape.dim) == 4
        hint = next(filter(None, (_sizes(*use[:2], shapes) for use in uses[info.name])), None)
        hint = hint or _binding(kind, uses[info.name], shapes, constants)
        if hint is None and image and kind in _FLOATS:
            nominal = _PIXELS.get(pixels.get("Image.NominalPixelRange", ""))
            hint = None if nominal is None else Hint(*nominal, "Image.NominalPixelRange")
        hint = hint or _plausible(info.name, kind, uses[info.name], constants)
        if hint is not None:
            hints[info.name] = hint
    return hints


def _binding(
    kind: int,
    uses: _Uses,
    shapes: Mapping[str, Shape],
    constants: Mapping[str, onnx.TensorProto],
) -> Hint | None:
    """Return the range that the consumers accept; None if they accept any value. A range that
    conflicts with earlier ones is ignored.
    """
    hint: Hint | None = None
    places: dict[int, tuple[onnx.NodeProto, set[int]]] = {}
    for node, place, _ in uses:
        places.setdefault(id(node), (node, set()))[1].add(place)
    for node, own in places.values():
        for at, (low, high) in (*_allowed(node, shapes), *_quantized(node, constants)):
            if at not in own or (node.op_type in _ONLY and kind not in _ONLY[node.op_type]):
                continue
            both = (low, high) if hint is None else (max(low, hint.low), min(high, hint.high))
            if both[0] <= both[1]:
                hint = Hint(*both, f"for its {node.op_type}")
    return hint


def _sizes(node: onnx.NodeProto, place: int, shapes: Mapping[str, Shape]) -> Hint | None:
    """Return the values with which a node makes its declared output shape; None if the input holds
    no sizes, or if a shape is unknown.
    """
    declared = shapes.get(next(iter(node.output), ""), ())
    data = shapes.get(node.input[0], ())
    if not declared or 0 in declared:
        return None
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
    axes = next((a.ints for a in node.attribute if a.name == "axes"), range(len(declared)))
    is_comparable = len(data) == len(declared) and 0 not in data
    pairs = list(zip(declared, data, strict=True)) if is_comparable else []
    values: Sequence[float] = ()
    match node.op_type, place:
        case ("ConstantOfShape", 0) | ("Expand" | "Reshape", 1) | ("MaxUnpool", 2):
            values = declared
        case ("CenterCropPad", 1) if all(-len(declared) <= each < len(declared) for each in axes):
            values = [declared[each] for each in axes]
        case ("Tile", 1) if all(output % size == 0 for output, size in pairs):
            values = [output // size for output, size in pairs]
        case ("Pad", 1) if len(node.input) < 4:
            values = [0] * len(pairs) + [output - size for output, size in pairs]
        case ("Resize" | "Upsample", 1 | 2 | 3):
            is_sizes = node.op_type == "Resize" and place == 3
            values = declared if is_sizes else [output / size for output, size in pairs]
        case ("Unsqueeze", 1):
            values = _added(data, declared)
        case ("Squeeze", 1):
            values = _added(declared, data)
        case ("OneHot" | "TopK", 1) if -len(declared) <= axis < len(declared):
            values = [declared[axis]]
        case ("Loop", 0 | 1):
            states = len(node.input) - 2
            output = shapes.get(node.output[states], ()) if len(node.output) > states else ()
            values = [1 if place else output[0]] if output and output[0] else ()
    if not values:
        return None
    why = f"the size that its {node.op_type} is declared to make"
    return Hint(min(values), max(values), why, tuple(values))


def _added(short: Shape, long: Shape) -> Sequence[int]:
    """Return the axes of size 1 that only `long` has; nothing if the shapes differ otherwise."""
    added, rest = [], [*short]
    for axis, size in enumerate(long):
        if rest and rest[0] == size and (size != 1 or len(rest) == len(long) - axis):
            del rest[0]
        elif size == 1:
            added.append(axis)
        else:
            return ()
    return () if rest else added


def _plausible(
    name: str, kind: int, uses: _Uses, constants: Mapping[str, onnx.TensorProto]
) -> Hint | None:
    """Return the range that an input's first ops and name suggest; None if they suggest none."""
    named = next((hint for pattern, hint in _NAMED if pattern.search(name)), None)
    if named is not None:
        return named
    if kind not in _FLOATS:
        return _counted(kind, uses, constants)
    for node, place, _ in uses:
        if node.op_type not in _FIRST:
            continue
        others = [_numbers(constants.get(value)) for value in node.input if value in constants]
        pixels = _pixels(node.op_type, others) if place == 0 else None
        if pixels is not None:
            return Hint(*pixels, f"by its first op, {node.op_type}")
    return next((hint for pattern, hint in _FLOATS_NAMED if pattern.search(name)), None)


def _pixels(op_type: str, constants: Sequence[Sequence[float]]) -> Range | None:
    """Return the range of an image's values, judged by the first op on it."""
    if op_type == "BatchNormalization" and len(constants) == 4 and constants[2] and constants[3]:
        spreads = [math.sqrt(abs(variance)) for variance in constants[3]]
        ends = [(m - 2 * sd, m + 2 * sd) for m, sd in zip(constants[2], spreads, strict=False)]
        return min(low for low, _ in ends), max(high for _, high in ends)
    by = constants[0] if len(constants) == 1 else ()
    if not by or min(by) <= 0:
        return None
    pixels = {
        "Div": min(by) >= _LARGE,
        "Mul": max(by) <= 1 / _LARGE,
        "Sub": max(by) > 2,
    }
    if pixels.get(op_type, False) and (op_type != "Div" or max(by) <= 256):
        return 0, 255
    return (0, 1) if op_type == "Sub" and max(by) <= 1 else None


def _counted(kind: int, uses: _Uses, constants: Mapping[str, onnx.TensorProto]) -> Hint | None:
    """Return the range of an integer input; None if its uses suggest none.

    An input that is compared with constants has their range. A count has more values than 0 and 1.
    """
    if kind not in _WIDE:
        return None
    compared = [
        number
        for node, _, _ in uses
        if node.op_type == "Equal"
        for value in node.input
        for number in _numbers(constants.get(value))
    ]
    if compared and max(compared) > 1:
        return Hint(min(compared), max(compared), "what it is compared with")
    for node, place, cast in uses:
        if node.op_type in _ARITHMETIC and not (cast and _may_mask(node, place, constants)):
            return Hint(0, 255 if cast else 7, f"it counts, for its {node.op_type}")
    return None


def _allowed(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> Iterator[tuple[int, Range]]:
    """Yield the positions of inputs that a node restricts, each with its range."""
    op = node.op_type
    if op in _DOMAINS:
        yield 0, _DOMAINS[op]
    if op in ("Div", "Mod"):
        yield 1, (1, 4)
    yield from ((place, allowed) for (sized, place), allowed in _SIZES.items() if sized == op)
    indexed: dict[int, int] = {}  # places of indices, with the size of the indexed axis
    if op in ("Gather", "GatherElements", "ScatterElements"):
        table = shapes.get(node.input[0], ())
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if -len(table) <= axis < len(table):
            indexed[1] = table[axis]
    elif op in ("GatherND", "ScatterND"):
        indexed[1] = min(shapes.get(node.input[0], (0,)), default=0)
    elif op == "EmbedLayerNormalization":
        for place, rows in _EMBEDDED:
            if rows < len(node.input):
                indexed[place] = next(iter(shapes.get(node.input[rows], ())), 0)
    yield from ((place, (0, float(size - 1))) for place, size in indexed.items() if size > 0)


def _quantized(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]
) -> Iterator[tuple[int, Range]]:
    """Yield the range that a QuantizeLinear with one scale quantizes without saturation."""
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


def _may_mask(node: onnx.NodeProto, place: int, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Tell whether a node may use an input as a mask: `x * mask`, `1 - mask`, `mask * -1e9`."""
    by = [n for value in node.input for n in _numbers(constants.get(value))]
    turned = node.op_type == "Sub" and place == 1
    return turned or not by or min(by) < -1000 or {abs(number) for number in by} <= {0, 1}


def _number(tensor: onnx.TensorProto | None) -> float:
    """Return the number of a constant; NaN unless it is one number in the model itself."""
    numbers = _numbers(tensor)
    return numbers[0] if len(numbers) == 1 else math.nan


def _numbers(tensor: onnx.TensorProto | None) -> Sequence[float]:
    """Return the numbers of a constant; an empty sequence if they are many or outside the model."""
    from onnx import numpy_helper

    if tensor is None or tensor.data_location == tensor.EXTERNAL or math.prod(tensor.dims) > 4096:
        return ()
    try:
        return [float(number) for number in numpy_helper.to_array(tensor).reshape(-1)]
    except (ValueError, TypeError, KeyError):
        return ()


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    nodes = (node for node in graph.node if node.op_type == "Constant")
    constants = {n.output[0]: a.t for n in nodes for a in n.attribute if a.name == "value"}
    return constants | {tensor.name: tensor for tensor in graph.initializer}


def _shapes(graph: onnx.GraphProto, constants: Mapping[str, onnx.TensorProto]) -> dict[str, Shape]:
    """Return declared shapes of values; an open size is 0."""
    shapes: dict[str, Shape] = {}
    for value in (*graph.value_info, *graph.output, *graph.input):
        dims = value.type.tensor_type.shape.dim
        shapes[value.name] = tuple(max(dim.dim_value, 0) for dim in dims)
    return shapes | {name: tuple(tensor.dims) for name, tensor in constants.items()}


Array = npt.NDArray[np.generic]
Dim = int | str | None


class InputSpec(Struct, frozen=True, kw_only=True):
    """A graph input that needs a value.

    Attributes:
        dtype: element type; None if the input is not a tensor, or numpy has no such type.
        shape: a size, a dimension's name, or None for an unknown size; () is a scalar.
        kind: ONNX type in words: `float32`, `sequence`, ...
        hint: the range that is assumed for its values (`range_hints`); None if any value may occur.
    """

    name: str
    dtype: np.dtype[np.generic] | None
    shape: tuple[Dim, ...]
    kind: str
    hint: Hint | None = None

    @property
    def problem(self) -> str | None:
        """Reason why no value can be generated for the input; None if one can."""
        if self.dtype is None or self.dtype.kind in "OUSc" or self.kind in _PACKED:
            return f"input '{self.name}' is of type {self.kind}, for which no values are generated"
        for dim in self.shape:
            if not isinstance(dim, int):
                named = f"'{dim}'" if dim else "without a name"
                return f"input '{self.name}' has a dimension {named} of unknown size"
        return None

    @property
    def remedy(self) -> str | None:
        """Advice if no file can hold its values; None if one can."""
        if self.dtype is not None:
            return None
        return (
            "no file holds values of such a type: feed it with `epctx.runtime.InferenceSession`, "
            "or export the model with a tensor in its place"
        )

    @property
    def open(self) -> Mapping[int, str]:
        """Names of open dimensions, by axis; a dimension without a name is `input[axis]`."""
        return {
            axis: dim or f"{self.name}[{axis}]"
            for axis, dim in enumerate(self.shape)
            if not isinstance(dim, int)
        }

    def fixed(self, sizes: Mapping[str, int]) -> InputSpec:
        """Return the input with sizes for open dimensions, by their names in `open`."""
        named = self.open
        return replace(
            self, shape=tuple(sizes.get(named.get(i, ""), dim) for i, dim in enumerate(self.shape))
        )

    def __str__(self) -> str:
        if self.dtype is None:
            return self.kind
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.kind}[{dims}]"


_PACKED = frozenset({"int4", "uint4", "int2", "uint2", "float4_e2m1fn"})


def specs(model: onnx.ModelProto) -> tuple[InputSpec, ...]:
    """Return the inputs that a run needs: graph inputs that are not initializers."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    initializers |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    hints = range_hints(model)
    return tuple(
        replace(spec(info), hint=hints.get(info.name))
        for info in model.graph.input
        if info.name not in initializers
    )


def spec(info: onnx.ValueInfoProto) -> InputSpec:
    """Return the name and type of a value."""
    import onnx

    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        word = (kind or "unknown_type").removesuffix("_type").replace("_", " ")
        return InputSpec(name=info.name, dtype=None, shape=(), kind=word)
    tensor = info.type.tensor_type
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except KeyError:
        return InputSpec(name=info.name, dtype=None, shape=(), kind=f"type {tensor.elem_type}")
    shape = tuple(map(_dim, tensor.shape.dim))
    if not tensor.HasField("shape"):
        shape = (None,)
    word = "string" if tensor.elem_type == onnx.TensorProto.STRING else str(dtype)
    return InputSpec(name=info.name, dtype=dtype, shape=shape, kind=word)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    """Return a dimension; a negative size is unknown, as in ONNX Runtime."""
    from epctx.graph.serde import protos

    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return protos.symbol(dim)
