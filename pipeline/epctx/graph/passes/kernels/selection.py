"""Kernels that choose elements by indices or conditions: exact whatever the elements are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from epctx.graph.passes.kernels.operation import IN_MEMORY, Declined, Kernel, Operation, axis
from epctx.graph.weights.arrays import Array, nbytes

Index = tuple[slice, ...]


def gather(op: Operation) -> Sequence[Array]:
    """Gather, block by block where it is large."""
    data, indices = op.input(0), op.input(1)
    along = axis(op.integer("axis", 0), data.ndim)
    if nbytes(indices) > IN_MEMORY:
        raise Declined("too many indices")
    indices = _indices(indices, data.shape[along])
    dims = (*data.shape[:along], *indices.shape, *data.shape[along + 1 :])
    last = along + indices.ndim

    def block(index: Index) -> Array:
        # not numpy.take, which lays out all of `data` first where it is a transposition
        where: tuple[slice | Array, ...] = (indices[index[along:last]],)
        picked: Array = data[index[:along] + where + index[last:]]
        return picked

    return [op.assemble(dims, data, block)]


def gather_elements(op: Operation) -> Sequence[Array]:
    """GatherElements."""
    data, indices = op.input(0), op.input(1)
    op.in_memory(indices.size * data.itemsize)
    along = axis(op.integer("axis", 0), data.ndim)
    cut = tuple(slice(0, d) if i != along else slice(None) for i, d in enumerate(indices.shape))
    return [np.take_along_axis(data[cut], _indices(indices, data.shape[along]), along)]


def gather_nd(op: Operation) -> Sequence[Array]:
    """GatherND without batch dimensions."""
    data, indices = op.input(0), op.input(1)
    depth = indices.shape[-1]
    if op.integer("batch_dims", 0) or not 1 <= depth <= data.ndim:
        raise Declined("batch dimensions")
    op.in_memory(indices.size // depth * math.prod(data.shape[depth:]) * data.itemsize)
    places = tuple(_indices(indices[..., i], data.shape[i]) for i in range(depth))
    return [data[places]]


def scatter_nd(op: Operation) -> Sequence[Array]:
    """ScatterND without a reduction; later updates win as in the order of the indices."""
    data, indices, updates = op.input(0), op.input(1), op.input(2)
    depth = indices.shape[-1]
    if op.text("reduction", "none") != "none" or not 1 <= depth <= data.ndim:
        raise Declined("a reduction")
    op.in_memory()
    places = tuple(_indices(indices[..., i], data.shape[i]).reshape(-1) for i in range(depth))
    if len(set(zip(*(place.tolist() for place in places), strict=True))) != places[0].size:
        raise Declined("an element is updated twice")
    result = np.array(data)
    result[places] = updates.reshape(-1, *data.shape[depth:])
    return [result]


def scatter_elements(op: Operation) -> Sequence[Array]:
    """ScatterElements (Scatter) without a reduction."""
    data, indices, updates = op.input(0), op.input(1), op.input(2)
    if op.text("reduction", "none") != "none":
        raise Declined("a reduction")
    op.in_memory()
    along = axis(op.integer("axis", 0), data.ndim)
    places = list[Array](np.indices(indices.shape))
    places[along] = np.asarray(_indices(indices, data.shape[along]), np.int64)
    flat = np.ravel_multi_index(tuple(places), data.shape)
    if np.unique(flat).size != flat.size:
        raise Declined("an element is updated twice")
    result = np.array(data, order="C")
    result.reshape(-1)[flat] = updates
    return [result]


def where(op: Operation) -> Sequence[Array]:
    """Where, block by block where it is large.

    onnxruntime's CPU kernel makes 0.0 of -0.0 (1.31.1), so that such a node stays.
    """

    def choose(condition: Array, one: Array, other: Array) -> Array:
        chosen = np.where(condition, one, other)
        if chosen.dtype.kind not in "iub" and (np.signbit(chosen) & (chosen == 0)).any():
            raise Declined("a negative zero")
        return chosen

    return [op.elementwise(choose, op.input(0), op.input(1), op.input(2))]


def trilu(op: Operation) -> Sequence[Array]:
    """Trilu."""
    data, k = op.input(0), op.optional(1)
    op.in_memory()
    cut = np.triu if op.integer("upper", 1) else np.tril
    return [cut(data, 0 if k is None else int(k.reshape(-1)[0]))]


def compress(op: Operation) -> Sequence[Array]:
    """Compress."""
    data, condition = op.input(0), op.input(1)
    op.in_memory()
    along = op.integer("axis") if "axis" in op.node.attributes else None
    return [np.compress(condition, data, axis=along)]


def one_hot(op: Operation) -> Sequence[Array]:
    """OneHot of integer indices."""
    indices, depth, values = op.input(0), int(op.input(1).reshape(-1)[0]), op.input(2)
    if indices.dtype.kind not in "iu" or depth < 1:
        raise Declined("indices that are no integers")
    op.in_memory(indices.size * depth * max(values.itemsize, 8))
    along = axis(op.integer("axis", -1), indices.ndim + 1)
    wide = np.expand_dims(np.where(indices < 0, indices + depth, indices), along)
    places = np.arange(depth).reshape([-1 if i == along else 1 for i in range(wide.ndim)])
    return [np.where(wide == places, values[1], values[0])]


def non_zero(op: Operation) -> Sequence[Array]:
    """NonZero."""
    data = op.input(0)
    op.in_memory(data.size * 8 * max(data.ndim, 1))
    if data.ndim == 0:
        raise Declined("a scalar: implementations differ")
    return [np.array(np.nonzero(data), np.int64)]


def _indices(indices: Array, size: int) -> Array:
    """Indices counted from the front."""
    if indices.size and not (-size <= indices.min() and indices.max() < size):
        raise Declined("an index out of range")
    return np.where(indices < 0, indices + size, indices)


KERNELS: Mapping[str, tuple[int, Kernel]] = {
    "Compress": (9, compress),
    "Gather": (1, gather),
    "GatherElements": (11, gather_elements),
    "GatherND": (11, gather_nd),
    "NonZero": (9, non_zero),
    "OneHot": (9, one_hot),
    "Scatter": (9, scatter_elements),
    "ScatterElements": (11, scatter_elements),
    "ScatterND": (11, scatter_nd),
    "Trilu": (14, trilu),
    "Where": (9, where),
}
"""Op type to (the first opset whose form the kernel knows, kernel)."""
