"""A partition as a graph of the context binary: its weights taken out, by content.

What stays in the graph is small, or may be read by ONNX Runtime before weights are bound: shapes,
axes, splits. Weights inside control-flow bodies and Constant nodes come out too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from epctx.graph.serde import canonical
from epctx.graph.weights import tensors
from epctx.providers.reference.layout import REFERENCE_PREFIX
from epctx.providers.reference.writer import Graph, Weight

INLINE_BYTES = 1024
"""Tensors smaller than this stay in the graph."""

INLINE_INDICES = 8192
"""One-dimensional integers up to this many stay in the graph: shape inference may need them."""

_STORED_WIDTHS = frozenset({2, 4, 8, 16, 32, 64})
"""Bits of an element that ONNX Runtime takes from a buffer."""
_NOT_STORED = frozenset({ir.DataType.STRING, ir.DataType.COMPLEX64})


def lower(subgraph: ir.Model, *, name: str, model: str) -> Graph:
    """Take the weights out of a partition's model, which is changed.

    Args:
        subgraph: a model of the partition alone.
        name: the graph's name in the context.
        model: file name of the model that it is a part of.
    """
    LiftConstantsToInitializersPass(size_limit=INLINE_BYTES // 8)(subgraph)
    _hoist(subgraph)
    subgraph.graph.name = name
    weights = []
    for value in subgraph.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and is_stored(tensor):
            digest, chunks = tensors.content_digest(tensor), partial(tensors.chunks, tensor)
            weights.append(Weight(digest=digest, length=tensor.nbytes, chunks=chunks))
            value.const_value = tensors.external(tensor, REFERENCE_PREFIX + digest.hex)
    proto = canonical.serialize(subgraph)
    return Graph(name=name, model=model, proto=proto, weights=tuple(weights))


def is_stored(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor goes into the table of tensors."""
    if tensor.dtype in _NOT_STORED or tensor.dtype.bitwidth not in _STORED_WIDTHS:
        return False
    integers = tensor.dtype in (ir.DataType.INT32, ir.DataType.INT64)
    if integers and tensor.shape.rank() == 1 and tensor.size <= INLINE_INDICES:
        return False
    return tensor.nbytes >= INLINE_BYTES


def _hoist(model: ir.Model) -> None:
    """Move the weights of control-flow bodies to the main graph, where they can be bound."""
    fresh = _fresh_names(model)
    for graph in model.graphs():
        if graph is model.graph:
            continue
        for name, value in tuple(graph.initializers.items()):
            tensor = value.const_value
            edge = value.is_graph_input() or value.is_graph_output()
            if tensor is None or edge or not is_stored(tensor):
                continue
            del graph.initializers[name]
            value.name = next(fresh)
            model.graph.register_initializer(value)


def _fresh_names(model: ir.Model) -> Iterator[str]:
    """Names that no value of any graph has, always the same for the same model."""
    taken: set[str | None] = set()
    for graph in model.graphs():
        taken.update(value.name for value in (*graph.inputs, *graph.initializers.values()))
        taken.update(value.name for node in graph for value in node.outputs)
    return (name for name in (f"hoisted_{i}" for i in count()) if name not in taken)
