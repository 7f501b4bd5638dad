"""Every tensor of a model: initializers and attributes, those of subgraphs and functions too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

Replace = Callable[[ir.TensorProtocol], ir.TensorProtocol]
_Undo = list[Callable[[], None]]


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
