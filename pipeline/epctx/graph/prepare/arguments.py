"""Arguments that ONNX's shape inference and ONNX Runtime's kernels read differently.

With such an argument, shape inference describes another model than the kernels compute, even in
ONNX Runtime's own optimizer. So these arguments are written in a form that both read alike: that of
the kernels of onnxruntime 1.31.1 at ORT_DISABLE_ALL:

- Slice: where a step is negative, an end of INT32_MAX or INT64_MAX means "to the front", which is
  written as the lowest integer. Steps beyond 2**30 take one element, as any step that is longer
  than an axis; onnx 1.23 runs for ever on them, takes all memory, or crashes.
- Squeeze: no axes mean all axes of size 1, as if they were left out.
- Reductions and Reshape: `noop_with_empty_axes` and `allowzero` count only if they are 1.

If there is no such form, `disputed` returns the shape that the kernels make.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from msgspec import Struct
from onnx import numpy_helper

from epctx.graph.serde import protos

TO_THE_END: Final = (2**31 - 1, 2**63 - 1)
"""Ends that ONNX Runtime's Slice takes for the end of the axis in both directions."""

_ENDS, _STEPS = 2, 4
_LONGEST: Final = 2**30
"""A step longer than any axis: onnx adds steps to indices in 32 bits."""

Constants = Callable[[str], onnx.TensorProto | None]
Shape = tuple[int | None, ...]
_MISFIT: Final = -1
"""Marker for sizes of one axis that do not fit each other."""
_FORGETS_AXES: Final = (*map(int, ort.__version__.split(".")[:2]),) < (1, 32)
"""True if reductions of empty data ignore negative axes."""
Integers = npt.NDArray[np.signedinteger[Any]]


class Dispute(Struct, frozen=True):
    """Shape that ONNX Runtime's kernels make where onnx infers another one.

    Attributes:
        shape: None if it is unknown; an unknown size is None.
    """

    shape: Shape | None = None


def write_alike(model: onnx.ModelProto) -> None:
    """Rewrite such arguments of all nodes if they are constants inside the model."""
    taken: set[str] = set()
    for graph, constants in _scopes(model.graph, {}):
        for node in graph.node:
            if node.domain:
                continue
            for tensor in rewrite(node, constants.get):
                taken = taken or {value for each in protos.graphs(model) for value in _names(each)}
                name = tensor.name
                while tensor.name in taken:
                    tensor.name += "_"
                taken.add(tensor.name)
                node.input[list(node.input).index(name)] = tensor.name
                graph.initializer.append(tensor)


def rewrite(node: onnx.NodeProto, constant: Constants) -> Iterable[onnx.TensorProto]:
    """Rewrite the arguments of one node of ONNX's own domain; return its new constants.

    `constant` returns the content of an input if it is known.
    """
    if node.op_type == "Slice" and len(node.input) > _STEPS:
        return _slice(node, constant)
    if node.op_type == "Squeeze":
        _squeeze(node, constant)
    for attribute in node.attribute:
        if attribute.name in ("noop_with_empty_axes", "allowzero") and attribute.i != 1:
            attribute.i = 0
    return ()


def _slice(node: onnx.NodeProto, constant: Constants) -> Iterator[onnx.TensorProto]:
    ends, steps = (_integers(constant(node.input[index])) for index in (_ENDS, _STEPS))
    if steps is None:
        return
    short = np.clip(steps, -_LONGEST, _LONGEST)
    if not np.array_equal(short, steps):
        yield _put(node, _STEPS, short, "steps")
    if ends is None or ends.shape != steps.shape:
        return
    front = (steps < 0) & np.isin(ends, TO_THE_END)
    if front.any():
        yield _put(node, _ENDS, np.where(front, np.iinfo(ends.dtype).min, ends), "ends")


def _squeeze(node: onnx.NodeProto, constant: Constants) -> None:
    for index, attribute in enumerate(node.attribute):
        if attribute.name == "axes" and not attribute.ints:
            del node.attribute[index]
            return
    axes = _integers(constant(node.input[1])) if len(node.input) > 1 else None
    if axes is not None and not axes.size:
        del node.input[1:]


def _put(node: onnx.NodeProto, index: int, array: Integers, name: str) -> onnx.TensorProto:
    node.input[index] = f"{node.output[0]}/{name}"
    return numpy_helper.from_array(array, node.input[index])


def _integers(tensor: onnx.TensorProto | None) -> Integers | None:
    """Return the integers of a tensor; None if they are outside the model, or not integers."""
    if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    if tensor.data_type not in (onnx.TensorProto.INT32, onnx.TensorProto.INT64):
        return None
    return numpy_helper.to_array(tensor)


def _scopes(
    graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto]
) -> Iterator[tuple[onnx.GraphProto, Mapping[str, onnx.TensorProto]]]:
    """Yield each graph with the constants that its nodes see."""
    hidden = {value.name for value in graph.input}
    hidden |= {name for node in graph.node for name in node.output}
    constants = {name: tensor for name, tensor in outer.items() if name not in hidden}
    constants |= {t.name: t for t in graph.initializer if t.name not in hidden}
    constants |= {
        node.output[0]: tensor
        for node in graph.node
        if node.op_type == "Constant" and (tensor := _of_constant(node)) is not None
    }
    yield graph, constants
    for node in graph.node:
        for body in protos.subgraphs(node):
            yield from _scopes(body, constants)


def _of_constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    for attribute in node.attribute:
        if attribute.name == "value":
            tensor: onnx.TensorProto = attribute.t
            return tensor
        if attribute.name == "value_ints":
            return numpy_helper.from_array(np.array(attribute.ints, np.int64))
    return None


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in (*graph.input, *graph.initializer))
    yield from (name for node in graph.node for name in node.output)


def is_crashing(node: onnx.NodeProto, typed: Container[str]) -> bool:
    """Tell whether onnx 1.23's inference may end the process: EyeLike of a value without a type.

    `typed` has the names of values whose type is known before inference.
    """
    return node.op_type == "EyeLike" and not node.domain and node.input[0] not in typed


def disputed(node: onnx.NodeProto, opset: int, shapes: Mapping[str, Shape]) -> Dispute | None:
    """Return the shape that kernels make if onnx infers another one and no form of the node is read
    alike by both; None if they agree.

    `shapes` has known shapes; an unknown size is None.
    """
    input_shapes = [shapes.get(name) for name in node.input]
    if node.domain or not input_shapes:
        return None
    first = input_shapes[0]
    match node.op_type:
        case "Squeeze" | "Unsqueeze" if opset < 11:  # negative axes are ignored
            negative = any(min(each.ints, default=0) < 0 for each in node.attribute)
            return Dispute() if negative else None
        case "NonZero":  # kernels make a row for a scalar
            return Dispute() if first == () else None
        case "PRelu":  # the slope may be wider
            shape = broadcast(input_shapes)
            return None if shape is None or shape == first else Dispute(shape=shape)
        case "Einsum":  # kernels broadcast an axis of size 1
            return _einsum(node, input_shapes)
        case "AveragePool" | "LpPool" | "MaxPool":  # the last window may lie in the padding
            return None if first is None else _pool(node, first)
    reduces = node.op_type.startswith("Reduce") or node.op_type in ("ArgMax", "ArgMin")
    return Dispute() if reduces and _FORGETS_AXES and first is not None and 0 in first else None


def broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    """Return the shape to which these shapes broadcast; None if one of them is unknown, or if they
    do not fit each other.
    """
    known_shapes = [shape for shape in shapes if shape is not None]
    rank = max(map(len, known_shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in known_shapes]
    sizes = [_common(axis) for axis in zip(*padded, strict=True)]
    return None if len(known_shapes) < len(shapes) or _MISFIT in sizes else tuple(sizes)


def _common(sizes: Iterable[int | None]) -> int | None:
    """Return the size of an axis that operands have with these sizes; _MISFIT if there is none."""
    distinct = {*sizes} - {1}
    whole = distinct - {None}
    if len(whole) > 1:
        return _MISFIT
    return next(iter(whole or distinct), 1)


def _einsum(node: onnx.NodeProto, shapes: Sequence[Shape | None]) -> Dispute | None:
    """Return the shape of an Einsum: kernels broadcast, onnx takes a letter's first size."""
    equation = next((a.s.decode() for a in node.attribute if a.name == "equation"), "")
    left, arrow, right = equation.replace(" ", "").partition("->")
    axes: dict[str, list[int | None]] = {}
    for term, shape in zip(left.split(","), shapes, strict=False):
        if shape is None:
            return None
        before, dots, after = term.partition("...")
        middle = len(shape) - len(before) - len(after)
        rest = [f".{middle - at}" for at in range(middle)] if dots else []
        for letter, size in zip((*before, *rest, *after), shape, strict=False):
            axes.setdefault(letter, []).append(size)
    if all(len({*sizes}) == 1 for sizes in axes.values()):
        return None
    dots = sorted((axis for axis in axes if axis[0] == "."), key=lambda axis: -int(axis[1:]))
    once = sorted(axis for axis in axes if axis[0] != "." and left.count(axis) == 1)
    before, ellipsis, after = right.partition("...")
    result = [*before, *(dots if ellipsis else ()), *after] if arrow else [*dots, *once]
    output = tuple(_common(axes.get(axis, [_MISFIT])) for axis in result)
    return None if _MISFIT in output else Dispute(shape=output)


def _pool(node: onnx.NodeProto, shape: Shape) -> Dispute | None:
    """Return the shape of a pool: with `ceil_mode` onnx, unlike kernels, counts a window that
    begins behind the data; kernels ignore dilations for padding that they choose.
    """
    given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    window, padding = given.get("kernel_shape", ()), given.get("auto_pad", b"NOTSET")
    count, is_ceil = len(window), bool(given.get("ceil_mode"))
    steps, gaps = (given.get(name, [1] * count) for name in ("strides", "dilations"))
    pads = given.get("pads", []) if padding == b"NOTSET" else []
    pads = pads or [0] * count * 2
    is_odd = is_ceil or (padding.startswith(b"SAME") and max(gaps, default=1) > 1)
    if not is_odd or not count == len(shape) - 2 == len(steps) == len(gaps) == len(pads) // 2:
        return None
    output = list(shape[:2])
    for at, size in enumerate(shape[2:]):
        if size is None or steps[at] < 1:
            return None
        before, after = pads[at], pads[at + count]
        if padding.startswith(b"SAME"):
            total = (-(-size // steps[at]) - 1) * steps[at] + window[at] - size
            before = total // 2 if padding == b"SAME_UPPER" else -(-total // 2)
            after = total - before
        room = size + before + after - gaps[at] * (window[at] - 1) - 1
        windows = 1 + (-(-room // steps[at]) if is_ceil else int(room / steps[at]))
        output.append(windows - (is_ceil and (windows - 1) * steps[at] >= size + before))
    return Dispute(shape=tuple(output))
