"""Which nodes an EP of ONNX Runtime is given.

ONNX Runtime asks the EP itself, node by node, inside the compile, and says afterwards what was
taken; there is no list to be had before (real-eps.md section 4). So an EP is given every node but
those that it cannot take, and those that make ONNX Runtime fail when they stay on the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import onnx_ir as ir

from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.graph import epcontext
from epctx.graph.dataflow import captured, subgraphs
from epctx.graph.serde.types import MapType
from epctx.providers.base import Capability

SMALL_WEIGHT: Final = 127
"""Bytes. A larger constant in the body of a control-flow node that stays on the CPU makes ONNX
Runtime 1.31.1 fail to write the EPContext model, on every EP (real-eps.md section 15)."""
_DOMAINS: Final = frozenset(
    {
        "",
        "ai.onnx",
        "ai.onnx.ml",
        "ai.onnx.preview",
        "ai.onnx.preview.training",
        "ai.onnx.training",
        "com.microsoft",
        "com.microsoft.nchwc",
        "com.microsoft.experimental",
        "com.ms.internal.nhwc",
        "org.pytorch.aten",
    }
)
"""Whose operators onnxruntime 1.31.1 has schemas for."""


def capability(model: ir.Model, takes_whole: Callable[[ir.Node], bool]) -> Capability:
    """The nodes that an EP of ONNX Runtime is given.

    Args:
        model: is not changed.
        takes_whole: whether the EP takes a control-flow node with all that is in it.
    """
    return Capability.by(model, lambda node: _refusal(node, takes_whole))


def _refusal(node: ir.Node, takes_whole: Callable[[ir.Node], bool]) -> str | None:
    if epcontext.is_epcontext(node):
        return "it is compiled already"
    if node.domain not in _DOMAINS:
        return f"onnxruntime has no operators of domain {node.domain}"
    for value in (*node.inputs, *node.outputs):
        if value is not None and (kind := _no_tensor_of_numbers(value)):
            return f'"{value.name}" is a {kind}, which no execution provider of onnxruntime takes'
    if _largest_weight(node) > SMALL_WEIGHT and not takes_whole(node):
        return (
            "the execution provider does not take it whole, and its body holds weights, which "
            "ONNX Runtime cannot write into an EPContext model"
        )
    return None


def _no_tensor_of_numbers(value: ir.Value) -> str | None:
    if isinstance(value.type, ir.SequenceType):
        return "sequence"
    if isinstance(value.type, ir.OptionalType):
        return "optional"
    if isinstance(value.type, ir.SparseTensorType):
        return "sparse tensor"
    if isinstance(value.type, MapType):
        return "map"
    if value.dtype == ir.DataType.STRING:
        return "tensor of strings"
    if value.dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        return "tensor of complex numbers"
    return None


def _largest_weight(node: ir.Node) -> int:
    """Bytes of the largest constant that the bodies of a control-flow node use."""
    return max(_weights(node), default=0)


def _weights(node: ir.Node) -> Iterator[int]:
    for graph in subgraphs(node):
        yield from (_size(value.const_value) for value in graph.initializers.values())
        for inner in graph:
            if inner.op_type == "Constant" and inner.domain == "":
                yield from (
                    _size(attribute.as_tensor())
                    for attribute in inner.attributes.values()
                    if attribute.type == ir.AttributeType.TENSOR
                )
    for value in captured(node):
        if value.is_initializer():
            yield _size(value.const_value)


def _size(tensor: ir.TensorProtocol | None) -> int:
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return 0
    return tensor.nbytes


def require_static_shapes(model: ir.Model, *, provider: str) -> None:
    """Refuse a model with inputs of unknown size, where the EP would compile nothing.

    QNN does so without an error, and without a line in its log (real-eps.md section 9).

    Raises:
        ModelError: inputs' dimensions have no number; names all of them.
    """
    what: list[str] = []
    dimensions: dict[str, str] = {}
    shapes: dict[str, str] = {}
    for value in model.graph.inputs:
        if value.is_initializer() or not isinstance(value.type, ir.TensorType | None):
            continue  # of other types there is no shape to fix, and no node that uses one is taken
        dims = None if value.shape is None else list(value.shape)
        free = [dim for dim in dims or () if not isinstance(dim, int)]
        if dims is None:
            what.append(f"input {value.name!r} has no shape")
            shapes[str(value.name)] = "[1]"
        elif all(dim.value for dim in free):
            dimensions |= {str(dim.value): "1" for dim in free}
        else:
            shapes[str(value.name)] = str([dim if isinstance(dim, int) else 1 for dim in dims])
        if free:
            words = ", ".join(str(dim.value) if dim.value else "one without a name" for dim in free)
            what.append(f"input {value.name!r} has dimensions of unknown size: {words}")
    if what:
        keys = (("dimensions", dimensions), ("shapes", shapes))
        fixed = " and ".join(f"`{key}: {_mapping(sizes)}`" for key, sizes in keys if sizes)
        raise ModelError(
            "; ".join(what),
            why=f"{provider} compiles static shapes only",
            remedy=f"fix them in the manifest, under the model: {fixed} (with your sizes"
            + (", one for each dimension)" if "[1]" in shapes.values() else ")"),
            code=Code.OPEN_DIMENSIONS,
        )


def _mapping(entries: Mapping[str, str]) -> str:
    listed = (f"{json.dumps(name)}: {entry}" for name, entry in entries.items())
    return f"{{{', '.join(listed)}}}"
