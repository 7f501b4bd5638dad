"""Gathers by constant indices, as exporters take attention masks apart, written as plainer ops.

QNN 2.7.0 takes no GatherND of booleans, none with batch dimensions, and none whose indices have
more than four dimensions ("Failed to create GatherND node"), which cuts a transformer in two. It
takes Gather, Slice, Reshape and Tile of all of these. Every form is exact, and made only where
indices are constants and sizes are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from epctx.graph.passes import edit
from epctx.graph.passes.rewrite import Match, Op, RewritePass, Rule, Var

_X, _INDICES = Var("x"), Var("indices")
_TILED = frozenset({ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64})
"""Types of which ONNX Runtime's CPU EP has a Tile in every version of the op, and QNN too."""
_OPEN = frozenset({None, ir.DataType.STRING})
"""Of strings ONNX Runtime 1.31.1's Gather copies the first of each slice only, its GatherND all."""


def _flat(match: Match, batches: int) -> ir.Value | None:
    """A Gather of the data as a table of what one index points to."""
    shape, given = edit.static_shape(match["x"]), edit.array(match["indices"])
    if shape is None or given is None or match.root.attributes.get_int("batch_dims", 0) != batches:
        return None
    if match["x"].dtype in _OPEN:
        return None
    indices = np.asarray(given, np.int64)
    depth = batches + indices.shape[-1] if indices.size else len(shape) + 1
    outer, inner = shape[:depth], shape[depth:]
    sizes = np.array(outer[batches:], np.int64)
    if depth > len(shape) or (indices >= sizes).any() or (indices < -sizes).any():
        return None
    places = np.moveaxis(np.where(indices < 0, indices + sizes, indices), -1, 0)
    own = np.indices(places.shape[1:], sparse=True)[:batches]
    every = np.broadcast_arrays(*own, *places)
    flat = np.asarray(np.ravel_multi_index(tuple(every), outer), np.int64)
    table = _reshaped(match, match["x"], (math.prod(outer), *inner))
    return match.op("Gather", [table, _integers(match, flat)], [ir.AttrInt64("axis", 0)])


def _plain(match: Match) -> ir.Value | None:
    return _flat(match, 0)


def _in_batches(match: Match) -> ir.Value | None:
    batches: int = match.root.attributes.get_int("batch_dims", 0)
    return _flat(match, batches) if batches > 0 else None


def _regular(match: Match) -> ir.Value | None:
    """Slice, Reshape and Tile for indices that count up evenly, or do so again and again."""
    x, given = match["x"], edit.array(match["indices"])
    shape = edit.static_shape(x)
    if shape is None or given is None or given.size < 2 or 0 in shape or x.dtype in _OPEN:
        return None
    axis = match.root.attributes.get_int("axis", 0) % len(shape)
    indices = np.asarray(given, np.int64)
    indices = np.where(indices < 0, indices + shape[axis], indices)
    if indices.min() < 0 or indices.max() >= shape[axis]:
        return None
    once, repeats = _once(indices)
    steps = np.unique(np.diff(once.reshape(-1)))
    if len(steps) > 1 or (len(steps) == 1 and steps[0] < 1):
        return None
    if max(repeats) > 1 and x.dtype not in _TILED:
        return None
    first, last, step = int(once.min()), int(once.max()), int(steps[0]) if len(steps) else 1
    if once.size != shape[axis]:
        bounds = [_integers(match, np.array([n])) for n in (first, last + 1, axis, step)]
        x = match.op("Slice", [x, *bounds])
    made = _reshaped(match, x, (*shape[:axis], *once.shape, *shape[axis + 1 :]))
    if max(repeats) == 1:
        return made
    times = [1] * axis + repeats + [1] * (len(shape) - axis - 1)
    return match.op("Tile", [made, _integers(match, np.array(times))])


def _once(indices: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """The indices without the dimensions along which they repeat, and how often they do."""
    repeats = [1] * indices.ndim
    for axis, size in enumerate(indices.shape):
        one = indices.take([0], axis)
        if size > 1 and (indices == one).all():
            indices, repeats[axis] = one, size
    return indices, repeats


def _reshaped(match: Match, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    return match.op("Reshape", [value, _integers(match, np.array(shape))])


def _integers(match: Match, numbers: npt.NDArray[np.integer]) -> ir.Value:
    return match.constant(ir.tensor(np.asarray(numbers, np.int64)))


FLAT = Rule(name="gather-flat", pattern=Op("GatherND", _X, _INDICES), replace=_plain, since=11)
_RULES = (
    FLAT,
    Rule(name="gather-batches", pattern=FLAT.pattern, replace=_in_batches, since=12),
    Rule(name="gather-regular", pattern=Op("Gather", _X, _INDICES), replace=_regular, since=10),
)


class SliceGathersPass(RewritePass):
    """Write Slice, Reshape and Tile for gathers by constant indices; Gather where that is all."""

    def __init__(self) -> None:
        super().__init__(_RULES)

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Counts of applications by rule."""
        return super().apply(model) if edit.opset(model) <= edit.NEWEST_OPSET else {}
