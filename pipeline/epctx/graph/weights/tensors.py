"""Every tensor of a model: initializers and attributes, those of subgraphs and functions too."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

Replace = Callable[[ir.TensorProtocol], ir.TensorProtocol]
_Undo = list[Callable[[], None]]


def kind_and_count(value: ir.Value) -> tuple[str, int]:
    """Return the kind of the weights that an initializer holds (float, integer or 4-bit), and how
    many they are. Their data is not read.
    """
    assert value.const_value is not None
    count, dtype = value.const_value.size, value.const_value.dtype
    users = [use.node for use in value.uses()]
    if any(node.op_type == "MatMulNBits" for node in users) and dtype == ir.DataType.UINT8:
        return "4-bit", 2 * count
    if dtype == ir.DataType.STRING:  # they have no width, and no EP that was measured takes them
        return "integer", count
    if dtype.bitwidth <= 4:
        return "4-bit", count
    return ("integer" if dtype.is_integer() else "float"), count


def counts_by_kind(values: Iterable[ir.Value]) -> dict[str, int]:
    """Return how many weights initializers hold, by kind."""
    found: Counter[str] = Counter()
    for value in values:
        if value.const_value is not None:
            kind, count = kind_and_count(value)
            found[kind] += count
    return dict(sorted(found.items()))


def external(
    tensor: ir.TensorProtocol,
    location: str,
    offset: int | None = None,
    length: int | None = None,
    *,
    folder: Path | str = "",
) -> ir.ExternalTensor:
    """A reference to a file, of the same name, type and shape as `tensor`."""
    shape, name = ir.Shape(tensor.shape.numpy()), tensor.name or ""
    return ir.ExternalTensor(
        location, offset, length, tensor.dtype, shape=shape, name=name, base_dir=folder
    )


@contextmanager
def replaced(model: ir.Model, replace: Replace) -> Iterator[None]:
    """Let `replace(tensor)` stand for every tensor of `model`, until the `with` block ends."""
    undo: _Undo = []
    try:
        _replace(model, replace, undo)
        yield
    finally:
        for each in undo:
            each()


def replace_all(model: ir.Model, replace: Replace) -> None:
    """Put `replace(tensor)` in the place of every tensor of `model`, for good."""
    _replace(model, replace, [])


def _replace(model: ir.Model, replace: Replace, undo: _Undo) -> None:
    for graph in model.graphs():
        for value in graph.initializers.values():
            _in_value(value, replace, undo)
    bodies = [model.graph, *(function.graph for function in model.functions.values())]
    for node in itertools.chain.from_iterable(body.all_nodes() for body in bodies):
        for attribute in tuple(node.attributes.values()):
            _in_attribute(node, attribute, replace, undo)


def _in_value(value: ir.Value, replace: Replace, undo: _Undo) -> None:
    tensor = value.const_value
    if tensor is None or (substitute := replace(tensor)) is tensor:
        return
    value.const_value = substitute
    undo.append(lambda: setattr(value, "const_value", tensor))


def _in_attribute(node: ir.Node, attribute: ir.Attr, replace: Replace, undo: _Undo) -> None:
    if attribute.is_ref():
        return
    name, substitute = attribute.name, attribute
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        if (other := replace(tensor)) is not tensor:
            substitute = ir.AttrTensor(name, other)
    elif attribute.type == ir.AttributeType.TENSORS:
        substitute = ir.AttrTensors(name, [replace(each) for each in attribute.as_tensors()])
    if substitute is not attribute:
        node.attributes[name] = substitute
        undo.append(lambda: node.attributes.__setitem__(name, attribute))
