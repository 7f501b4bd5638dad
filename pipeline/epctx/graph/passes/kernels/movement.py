"""Kernels that move, choose or make elements: exact whatever the elements are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from epctx.graph.passes.kernels.operation import (
    IN_MEMORY,
    Declined,
    Kernel,
    Operation,
    axis,
    static_input_shape,
)
from epctx.graph.passes.scratch import Array, content_bytes
from epctx.graph.prepare.arguments import TO_THE_END

Index = tuple[slice, ...]


def identity(op: Operation) -> Sequence[Array]:
    """Compute Identity; a rule, not a kernel, removes Dropout."""
    return [op.input(0)]


def shape(op: Operation) -> Sequence[Array]:
    """Compute Shape, of an input that need not be a constant."""
    dims = static_input_shape(op)
    start, end = op.integer("start", 0), op.integer("end", len(dims))
    return [np.array(dims, np.int64)[start:end]]


def size(op: Operation) -> Sequence[Array]:
    """Compute Size, of an input that need not be a constant."""
    return [np.array(math.prod(static_input_shape(op)), np.int64)]


def constant_of_shape(op: Operation) -> Sequence[Array]:
    """Compute ConstantOfShape: one element, repeated by a stride of zero."""
    dims = tuple(int(dim) for dim in op.input(0).reshape(-1))
    if min(dims, default=0) < 0:
        raise Declined("a negative dimension")
    attribute = op.node.attributes.get("value")
    value: Array = np.zeros(1, np.float32)
    if attribute is not None:
        value = attribute.as_tensor().numpy()
    op.grows(math.prod(dims) * value.itemsize)
    return [np.broadcast_to(value.reshape(())[()], dims)]


def eye_like(op: Operation) -> Sequence[Array]:
    """Compute EyeLike, of an input that need not be a constant."""
    rows, columns = static_input_shape(op)
    dtype = op.result_type()
    if dtype is None:
        raise Declined("the type is not known")
    op.in_memory(rows * columns * 8)
    return [np.eye(rows, columns, op.integer("k", 0)).astype(dtype.numpy())]


def transpose(op: Operation) -> Sequence[Array]:
    """Compute Transpose: a view."""
    return [np.transpose(op.input(0), op.integers(None, "perm"))]


def reshape(op: Operation) -> Sequence[Array]:
    """Compute Reshape since opset 5, with `allowzero` since 14."""
    data = op.input(0)
    wanted = [int(dim) for dim in op.input(1).reshape(-1)]
    if op.integer("allowzero", 0) != 1:
        wanted = [data.shape[i] if dim == 0 else dim for i, dim in enumerate(wanted)]
    if -1 in wanted:
        product = -math.prod(wanted)
        if product <= 0 or data.size % product:
            raise Declined("no size for -1")
        wanted[wanted.index(-1)] = data.size // product
    return [op.reshaped(data, tuple(wanted))]


def flatten(op: Operation) -> Sequence[Array]:
    """Compute Flatten."""
    data, first = op.input(0), op.integer("axis", 1)
    first += data.ndim if first < 0 else 0
    dims = math.prod(data.shape[:first]), math.prod(data.shape[first:])
    return [op.reshaped(data, dims)]


def squeeze(op: Operation) -> Sequence[Array]:
    """Compute Squeeze, axes as attribute or input."""
    axes = op.integers(1, "axes")
    return [np.squeeze(op.input(0), axes or None)]


def unsqueeze(op: Operation) -> Sequence[Array]:
    """Compute Unsqueeze, axes as attribute or input."""
    axes = op.integers(1, "axes")
    if axes is None:
        raise Declined("axes are missing")
    return [np.expand_dims(op.input(0), axes)]


def expand(op: Operation) -> Sequence[Array]:
    """Compute Expand: a view."""
    data = op.input(0)
    dims = np.broadcast_shapes(data.shape, tuple(int(d) for d in op.input(1).reshape(-1)))
    op.grows(math.prod(dims) * data.itemsize)
    return [np.broadcast_to(data, dims)]


def tile(op: Operation) -> Sequence[Array]:
    """Compute Tile since opset 6: a view with more axes, then reshaped."""
    data, repeats = op.input(0), [int(count) for count in op.input(1).reshape(-1)]
    if len(repeats) != data.ndim:
        raise Declined("one repeat for each axis")
    wide = [dim for pair in zip(repeats, data.shape, strict=True) for dim in pair]
    between = [dim for size in data.shape for dim in (1, size)]
    dims = tuple(count * size for count, size in zip(repeats, data.shape, strict=True))
    op.grows(math.prod(dims) * data.itemsize)
    return [op.reshaped(np.broadcast_to(data.reshape(between), wide), dims)]


def concat(op: Operation) -> Sequence[Array]:
    """Compute Concat, block by block if it is large."""
    parts = [part for part in op.inputs if part is not None]
    if len(parts) == 1:
        return [parts[0]]
    along = axis(op.integer("axis"), parts[0].ndim)
    starts = np.cumsum([0, *(part.shape[along] for part in parts)]).tolist()
    dims = list(parts[0].shape)
    dims[along] = starts[-1]
    if any(p.dtype != parts[0].dtype or p.ndim != len(dims) for p in parts):
        raise Declined("types or ranks differ")

    def block(index: Index) -> Array:
        first, last, _ = index[along].indices(dims[along])
        pieces = [
            part[(*index[:along], slice(max(first - start, 0), last - start), *index[along + 1 :])]
            for start, stop, part in zip(starts, starts[1:], parts, strict=False)
            if start < last and first < stop
        ]
        return np.concatenate(pieces or [parts[0][index]], axis=along)

    return [op.assemble(tuple(dims), parts[0], block)]


def split(op: Operation) -> Sequence[Array]:
    """Compute Split: views. Sizes as attribute or input, or equal parts."""
    data, count = op.input(0), len(op.node.outputs)
    along = axis(op.integer("axis", 0), data.ndim)
    sizes = op.integers(1, "split")
    if sizes is None:
        chunk = -(-data.shape[along] // count)
        if op.version < 18 and chunk * count != data.shape[along]:
            raise Declined("no equal parts")
        sizes = tuple(min(chunk, data.shape[along] - i * chunk) for i in range(count))
    if sum(sizes) != data.shape[along] or len(sizes) != count or min(sizes) < 0:
        raise Declined("the sizes do not add up")
    return list(np.split(data, np.cumsum(sizes)[:-1].tolist(), axis=along))


def slice_(op: Operation) -> Sequence[Array]:
    """Compute Slice: a view. Starts, ends, axes as attributes before opset 10, inputs since."""
    data = op.input(0)
    starts, ends = op.integers(1, "starts"), op.integers(2, "ends")
    if starts is None or ends is None:
        raise Declined("starts or ends are missing")
    axes = op.integers(3, "axes") or tuple(range(len(starts)))
    steps = op.integers(4, "steps") or (1,) * len(starts)
    index = [slice(None)] * data.ndim
    for start, end, which, step in zip(starts, ends, axes, steps, strict=True):
        along = axis(which, data.ndim)
        index[along] = _slice(start, end, step, data.shape[along])
    return [data[tuple(index)]]


def _slice(start: int, end: int, step: int, size: int) -> slice:
    """Return ONNX's slice as Python's: an end before the first element is None."""
    if step == 0:
        raise Declined("a step of zero")
    if step < 0 and end in TO_THE_END:
        raise Declined("an end that ONNX Runtime takes for the front")
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return slice(start, end if end >= 0 else None, step)


def pad(op: Operation) -> Sequence[Array]:
    """Compute Pad by a constant, the edge or a reflection; no negative pads."""
    data, pads = op.input(0), op.integers(1, "pads")
    mode = op.text("mode", "constant")
    if pads is None or min(pads, default=0) < 0 or mode not in ("constant", "edge", "reflect"):
        raise Declined("a pad of another kind")
    if op.version < 11 and "value" in op.node.attributes:
        raise Declined("a float fill for any type")
    axes = op.integers(3, "axes") or tuple(range(data.ndim))
    widths = [(0, 0)] * data.ndim
    for i, which in enumerate(axes):
        widths[axis(which, data.ndim)] = (pads[i], pads[i + len(axes)])
    dims = [size + sum(width) for size, width in zip(data.shape, widths, strict=True)]
    op.in_memory(math.prod(dims) * data.itemsize)
    if mode != "constant":
        short = any(max(w) >= s for s, w in zip(data.shape, widths, strict=True) if max(w))
        if short:
            raise Declined("a pad wider than the data")
        return [np.pad(data, widths, mode=mode)]  # type: ignore[call-overload]
    fill = op.optional(2)
    value = data.dtype.type(0) if fill is None or not fill.size else fill.reshape(-1)[0]
    return [np.pad(data, widths, constant_values=value)]


def depth_to_space(op: Operation) -> Sequence[Array]:
    """Compute DepthToSpace: a view, laid out."""
    data, block = op.input(0), op.integer("blocksize")
    n, c, h, w = data.shape
    if c % (block * block):
        raise Declined("channels do not divide")
    depth = c // (block * block)
    if op.text("mode", "DCR") == "DCR":
        view = data.reshape(n, block, block, depth, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        view = data.reshape(n, depth, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return [op.reshaped(view, (n, depth, h * block, w * block))]


def space_to_depth(op: Operation) -> Sequence[Array]:
    """Compute SpaceToDepth: a view, laid out."""
    data, block = op.input(0), op.integer("blocksize")
    n, c, h, w = data.shape
    depth_first = op.text("mode", "DCR") == "DCR"  # an attribute since opset 28
    axes = (0, 3, 5, 1, 2, 4) if depth_first else (0, 1, 3, 5, 2, 4)
    view = data.reshape(n, c, h // block, block, w // block, block).transpose(axes)
    return [op.reshaped(view, (n, c * block * block, h // block, w // block))]


def gather(op: Operation) -> Sequence[Array]:
    """Compute Gather, block by block if it is large."""
    data, indices = op.input(0), op.input(1)
    along = axis(op.integer("axis", 0), data.ndim)
    if content_bytes(indices) > IN_MEMORY:
        raise Declined("too many indices")
    indices = _indices(indices, data.shape[along])
    dims = (*data.shape[:along], *indices.shape, *data.shape[along + 1 :])
    last = along + indices.ndim

    def block(index: Index) -> Array:
        # numpy.take would first lay out all of `data` if it is a transposition.
        where: tuple[slice | Array, ...] = (indices[index[along:last]],)
        picked: Array = data[index[:along] + where + index[last:]]
        return picked

    return [op.assemble(dims, data, block)]


def gather_elements(op: Operation) -> Sequence[Array]:
    """Compute GatherElements."""
    data, indices = op.input(0), op.input(1)
    op.in_memory(indices.size * data.itemsize)
    along = axis(op.integer("axis", 0), data.ndim)
    cut = tuple(slice(0, d) if i != along else slice(None) for i, d in enumerate(indices.shape))
    return [np.take_along_axis(data[cut], _indices(indices, data.shape[along]), along)]


def gather_nd(op: Operation) -> Sequence[Array]:
    """Compute GatherND without batch dimensions."""
    data, indices = op.input(0), op.input(1)
    depth = indices.shape[-1]
    if op.integer("batch_dims", 0) or not 1 <= depth <= data.ndim:
        raise Declined("batch dimensions")
    op.in_memory(indices.size // depth * math.prod(data.shape[depth:]) * data.itemsize)
    places = tuple(_indices(indices[..., i], data.shape[i]) for i in range(depth))
    return [data[places]]


def scatter_nd(op: Operation) -> Sequence[Array]:
    """Compute ScatterND without a reduction; an element that is updated twice is declined."""
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
    """Compute ScatterElements (Scatter), as `scatter_nd` does."""
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
    """Compute Where, block by block if it is large.

    onnxruntime's CPU kernel makes 0.0 of -0.0 (1.31.1), so such a node stays.
    """

    def choose(condition: Array, one: Array, other: Array) -> Array:
        chosen = np.where(condition, one, other)
        if chosen.dtype.kind not in "iub" and (np.signbit(chosen) & (chosen == 0)).any():
            raise Declined("a negative zero")
        return chosen

    return [op.elementwise(choose, op.input(0), op.input(1), op.input(2))]


def trilu(op: Operation) -> Sequence[Array]:
    """Compute Trilu."""
    data, k = op.input(0), op.optional(1)
    op.in_memory()
    cut = np.triu if op.integer("upper", 1) else np.tril
    return [cut(data, 0 if k is None else int(k.reshape(-1)[0]))]


def compress(op: Operation) -> Sequence[Array]:
    """Compute Compress."""
    data, condition = op.input(0), op.input(1)
    op.in_memory()
    along = op.integer("axis") if "axis" in op.node.attributes else None
    return [np.compress(condition, data, axis=along)]


def one_hot(op: Operation) -> Sequence[Array]:
    """Compute OneHot of integer indices."""
    indices, depth, values = op.input(0), int(op.input(1).reshape(-1)[0]), op.input(2)
    if indices.dtype.kind not in "iu" or depth < 1:
        raise Declined("indices that are no integers")
    op.in_memory(indices.size * depth * max(values.itemsize, 8))
    along = axis(op.integer("axis", -1), indices.ndim + 1)
    wide = np.expand_dims(np.where(indices < 0, indices + depth, indices), along)
    places = np.arange(depth).reshape([-1 if i == along else 1 for i in range(wide.ndim)])
    return [np.where(wide == places, values[1], values[0])]


def non_zero(op: Operation) -> Sequence[Array]:
    """Compute NonZero."""
    data = op.input(0)
    op.in_memory(data.size * 8 * max(data.ndim, 1))
    if data.ndim == 0:
        raise Declined("a scalar: implementations differ")
    return [np.array(np.nonzero(data), np.int64)]


def _indices(indices: Array, size: int) -> Array:
    """Return indices counted from the front."""
    if indices.size and not (-size <= indices.min() and indices.max() < size):
        raise Declined("an index out of range")
    return np.where(indices < 0, indices + size, indices)


SHAPE_KERNELS: Mapping[str, tuple[int, Kernel]] = {
    "EyeLike": (9, eye_like),
    "Shape": (1, shape),
    "Size": (1, size),
}
"""Kernels that need the shape of their input, not its elements, in the form of KERNELS."""

KERNELS: Mapping[str, tuple[int, Kernel]] = {
    "Compress": (9, compress),
    "Concat": (4, concat),
    "ConstantOfShape": (9, constant_of_shape),
    "DepthToSpace": (1, depth_to_space),
    "Expand": (8, expand),
    "Flatten": (1, flatten),
    "Gather": (1, gather),
    "GatherElements": (11, gather_elements),
    "GatherND": (11, gather_nd),
    "Identity": (1, identity),
    "NonZero": (9, non_zero),
    "OneHot": (9, one_hot),
    "Pad": (2, pad),
    "Reshape": (5, reshape),
    "Scatter": (9, scatter_elements),
    "ScatterElements": (11, scatter_elements),
    "ScatterND": (11, scatter_nd),
    "Slice": (1, slice_),
    "SpaceToDepth": (1, space_to_depth),
    "Split": (2, split),
    "Squeeze": (1, squeeze),
    "Tile": (6, tile),
    "Transpose": (1, transpose),
    "Trilu": (14, trilu),
    "Unsqueeze": (1, unsqueeze),
    "Where": (9, where),
}
"""Kernels by op type, with the first opset whose form they know."""
