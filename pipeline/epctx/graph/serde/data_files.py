"""External data written: which tensors go out of a model, and into which file.

Source: spec/onnx-external-data: one file for all, a size threshold, aligned offsets. `basepath` is
never written (ONNX Runtime refuses it, real-eps.md section 15).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import onnx_ir as ir

from epctx.errors import ManifestError
from epctx.files import paths
from epctx.graph.serde.ordering import OrderedGraph, order
from epctx.graph.weights import tensors
from epctx.graph.weights.mapped import MappedTensor
from epctx.graph.weights.planned import PlacedTensor, PlannedFile

THRESHOLD: Final = 1024
"""Bytes from which on onnx itself moves a tensor out."""
_INFERENCE_READS: Final = 1024
"""Bytes of the largest tensor that holds a shape or the like: 128 dimensions."""


def place(
    model: ir.Model,
    location: str,
    *,
    size_threshold: int = THRESHOLD,
    keep: Callable[[ir.TensorProtocol], bool] = lambda tensor: False,
) -> PlannedFile | None:
    """Move large initializers of a model out into a planned file: the model then refers to it.

    The file is a function of the graph: tensors come in its canonical order. A content that
    several values share is there once. Tensors of strings stay, they have no external form.

    Args:
        location: the file for all of them.
        size_threshold: tensors of at least so many bytes; 0: all.
        keep: tensors that stay, whatever their size.

    Returns:
        The file; None: no tensor goes out.

    Raises:
        ManifestError: the location is no relative path inside the folder.
    """
    if reason := paths.fault(location):
        raise ManifestError(
            f"{location!r} cannot be the file of external initializers",
            why=reason,
            remedy="name a file in the output folder",
        )
    file = PlannedFile(paths.normalize(location))
    offsets: dict[object, int] = {}
    moved: set[int] = set()
    for tensor in _initializers(order(model.graph)):
        if tensor.dtype == ir.DataType.STRING or tensor.nbytes < size_threshold or keep(tensor):
            continue
        moved.add(id(tensor))
        if _content(tensor) not in offsets:
            offsets[_content(tensor)] = file.append(tensor)

    def refer(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        return (
            PlacedTensor(tensor, file, offsets[_content(tensor)]) if id(tensor) in moved else tensor
        )

    tensors.replace_all(model, refer)
    return file if moved else None


def inference_may_read(tensor: ir.TensorProtocol) -> bool:
    """Whether shape inference may need the tensor's values: a shape, axes, pads, scales, a count.

    It cannot read them from external data, and ONNX Runtime then refuses the model ("Cannot parse
    data from external tensors", measured on 1.31.1), so they have to stay in it.
    """
    return len(tensor.shape) <= 1 and tensor.nbytes <= _INFERENCE_READS


def _initializers(ordered: OrderedGraph) -> Iterator[ir.TensorProtocol]:
    """Those of the graph and of its nodes' bodies, in canonical order."""
    for _, value in ordered.initializers():
        if value.const_value is not None:
            yield value.const_value
    for node in ordered.nodes:
        for body in ordered.bodies.get(node, ()):
            yield from _initializers(body)


def _content(tensor: ir.TensorProtocol) -> object:
    """The same for tensors whose bytes are the same range of a file, or the same object."""
    if isinstance(tensor, MappedTensor):
        return id(tensor.file), tensor.start, tensor.nbytes
    return id(tensor)
