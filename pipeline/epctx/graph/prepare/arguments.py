"""Arguments that ONNX's shape inference reads otherwise than ONNX Runtime's kernels run them.

Whoever infers a shape from such an argument, ONNX Runtime's own optimizer too, computes another
model than the kernels do. So they are written in the form that both read alike, which is what the
kernels of onnxruntime 1.31.1 make of them at ORT_DISABLE_ALL:

- Slice: where a step is negative, an end of INT32_MAX or INT64_MAX means "to the front", which is
  written as the lowest integer. Steps beyond 2**30 take one element, as any step that is longer
  than an axis; onnx 1.23 runs for ever on them, takes all memory, or crashes.
- Squeeze: no axes mean all axes of size 1, as if they were left out.
- Reductions and Reshape: `noop_with_empty_axes` and `allowzero` count where they are 1.

Where no form is read alike, `disputed` says so, and nothing is inferred.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from epctx.graph.serde import protos

TO_THE_END: Final = (2**31 - 1, 2**63 - 1)
"""Ends that ONNX Runtime's Slice takes for the end of the axis, whichever way it goes."""

_ENDS, _STEPS = 2, 4
_LONGEST: Final = 2**30
"""A step longer than any axis: onnx adds steps to indices in 32 bits."""

Constants = Callable[[str], onnx.TensorProto | None]
Shape = tuple[int | None, ...]
Integers = npt.NDArray[np.signedinteger[Any]]


def write_alike(model: onnx.ModelProto) -> None:
    """Rewrite such arguments of all nodes, where they are constants that are in the model."""
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
    """Rewrite them in one node of ONNX's own domain; the new constants that it reads.

    `constant` finds the content of an input, where it is known.
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
    """The content of a tensor that is whole in the model."""
    if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    if tensor.data_type not in (onnx.TensorProto.INT32, onnx.TensorProto.INT64):
        return None
    return numpy_helper.to_array(tensor)


def _scopes(
    graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto]
) -> Iterator[tuple[onnx.GraphProto, Mapping[str, onnx.TensorProto]]]:
    """Each graph with the constants that its nodes see."""
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
    """Whether onnx 1.23's inference may end the process: EyeLike of a value without a type.

    `typed` has the names of values whose type is known before anything is inferred.
    """
    return node.op_type == "EyeLike" and not node.domain and node.input[0] not in typed


def disputed(node: onnx.NodeProto, opset: int, shapes: Mapping[str, Shape]) -> bool:
    """Whether the shape that onnx infers of what a node makes is not the kernels', and there is no
    form of the node that both read alike: it must count as unknown.

    `shapes` has what is known of shapes, None for a size that is not.
    """
    if node.domain or not node.input:
        return False
    shape = shapes.get(node.input[0])
    match node.op_type:
        case "Squeeze" | "Unsqueeze" if opset < 11:  # axes from the back count as none
            return any(min(each.ints, default=0) < 0 for each in node.attribute)
        case "NonZero":  # of a scalar has a row for its one axis
            return shape == ()
        case "ArgMax" | "ArgMin":  # over nothing
            return shape is not None and 0 in shape
        case "PRelu" if shape is not None and node.input[1] in shapes:  # of a wider slope
            return np.broadcast_shapes(
                *(_ones(each) for each in (shape, shapes[node.input[1]]))
            ) != _ones(shape)
    return node.op_type.startswith("Reduce") and shape is not None and 0 in shape


def _ones(shape: Shape) -> tuple[int, ...]:
    return tuple(1 if size is None else size for size in shape)
