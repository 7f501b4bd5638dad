"""Forms of norms and gathers that more execution providers take.

EPs take a sum and a norm, but some do not take the two fused. QNN 2.7.0 takes no
SkipSimplifiedLayerNormalization. A decoder of onnxruntime-genai's builder has two in each layer,
and is cut at each. `split-norms` splits these nodes. It belongs to no level, since it is not exact:
the fused kernel of ONNX Runtime adds up squares in another order (4e-7 in float32, a step of
float16; 1.31.1).

Exporters slice attention masks by gathers with constant indices. QNN 2.7.0 takes no GatherND of
booleans, none with batch dimensions, and none whose indices have more than four dimensions ("Failed
to create GatherND node"), which cuts a transformer in two. It takes Gather, Slice, Reshape and Tile
in all of these cases. Every form is exact, and is made only if indices are constants and sizes are
known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from epctx.graph.passes import edit
from epctx.graph.passes.base import CountingPass
from epctx.graph.passes.rewrite import Match, Op, RewritePass, Rule, Var

_FUSED: Final = {
    "SkipSimplifiedLayerNormalization": "SimplifiedLayerNormalization",
    "SkipLayerNormalization": "LayerNormalization",
}
"""Ops of com.microsoft, and their norms, which ONNX Runtime has in the default domain."""


class SplitNormsPass(CountingPass):
    """Write `Add` and a norm for each norm of a sum."""

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Return counts by op."""
        changed: Counter[str] = Counter()
        editor, is_supported = edit.Editor(model), 17 <= edit.opset(model) <= edit.NEWEST_OPSET
        for graph in model.graphs():
            for node in graph:
                if is_supported and node.domain == "com.microsoft" and node.op_type in _FUSED:
                    changed[node.op_type] += _split(node, editor)
        return changed


def _split(node: ir.Node, editor: edit.Editor) -> bool:
    """Take a node apart unless its mean or deviation is used. The values of the sum and of the norm
    keep their names, so that values that cross a cut are found in the source.
    """
    out, statistics, sums = node.outputs[0], node.outputs[1:3], node.outputs[3:]
    if any(value.uses() or value.is_graph_output() for value in statistics):
        return False
    x, skip, *weights = node.inputs
    bias = weights.pop() if len(weights) == _most_weights(node) else None
    adds = [_node(node, "Add", [x, skip], x, editor)]
    if bias is not None:
        adds.append(_node(node, "Add", [adds[0].outputs[0], bias], x, editor))
    total = adds[-1].outputs[0]
    norm = _node(node, _FUSED[node.op_type], [total, *weights], out, editor)
    norm.attributes.add(ir.AttrFloat32("epsilon", node.attributes.get_float("epsilon", 1e-12)))
    norm.attributes.add(ir.AttrInt64("axis", -1))
    edit.graph_of(out).insert_before(node, [*adds, norm])
    for old, new in ((out, norm.outputs[0]), *((each, total) for each in sums)):
        if old.name and not old.is_graph_output():
            new.name, old.name = old.name, None
        editor.substitute(old, new)
    edit.remove(node)
    return True


def _most_weights(node: ir.Node) -> int:
    """Return the maximum number of inputs beside the two of the sum; the last is a bias."""
    return 3 if node.op_type == "SkipLayerNormalization" else 2


def _node(
    node: ir.Node,
    op: str,
    inputs: list[ir.Value | None],
    like: ir.Value | None,
    editor: edit.Editor,
) -> ir.Node:
    assert like is not None
    name = editor.free_name(f"{node.name or node.outputs[0].name}/{op}")
    output = ir.Value(name=editor.free_name(f"{name}/output"), shape=like.shape, type=like.type)
    return ir.Node("", op, inputs, outputs=[output], name=name)


_X, _INDICES = Var("x"), Var("indices")
_TILED = frozenset({ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64})
"""Types for which ONNX Runtime's CPU EP, in every version of the op, and QNN have a Tile."""
_OPEN = frozenset({None, ir.DataType.STRING})
"""Types that are not rewritten: Gather of ONNX Runtime 1.31.1 copies only the first string of each
slice.
"""


def _flat(match: Match, batches: int) -> ir.Value | None:
    """Return a Gather from a table with a row for each possible index; None if that fails."""
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
    """Return Slice, Reshape and Tile for indices that count up evenly, perhaps repeatedly."""
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
    reshaped = _reshaped(match, x, (*shape[:axis], *once.shape, *shape[axis + 1 :]))
    if max(repeats) == 1:
        return reshaped
    times = [1] * axis + repeats + [1] * (len(shape) - axis - 1)
    return match.op("Tile", [reshaped, _integers(match, np.array(times))])


def _once(indices: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return indices without the dimensions along which they repeat, and the repeats."""
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
    """Replace gathers by constant indices by Slice, Reshape and Tile, or by a plain Gather."""

    def __init__(self) -> None:
        super().__init__(_RULES)

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Return counts of applications by rule."""
        return super().apply(model) if edit.opset(model) <= edit.NEWEST_OPSET else {}
