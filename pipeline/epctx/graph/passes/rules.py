"""The built-in rules: exact, whatever the values are (design section 7, "local rewrite rules").

If a shape that a rule needs is not static, or an axis is not constant, the graph stays as it is. No
rule changes rounding, the sign of a zero or the treatment of NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from epctx.graph.passes import edit, ep_forms
from epctx.graph.passes.rewrite import Match, Op, RewritePass, Rule, Var
from epctx.graph.passes.scratch import Array

X, Y = Var("x"), Var("y")
RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Ops that change the shape but keep the elements and their order."""


def _input(match: Match) -> ir.Value:
    return match["x"]


def _dropout(match: Match) -> ir.Value | None:
    """Remove a Dropout that drops nothing: any from opset 7 to 11, others by attribute or input."""
    node = match.root
    if match.version < 7:
        return match["x"] if node.attributes.get_int("is_test", 0) else None
    if match.version >= 12 and len(node.inputs) > 2 and node.inputs[2] is not None:
        training = edit.array(node.inputs[2])
        if training is None or bool(training.reshape(-1)[0]):
            return None
    return match["x"]


def _same_type(match: Match) -> ir.Value | None:
    """Remove a Cast to the same type."""
    x = match["x"]
    return x if x.dtype is not None and x.dtype == match.output.dtype else None


def _cast_like(match: Match) -> ir.Value | None:
    """Write CastLike as Cast: it depends only on a type."""
    if match.output.dtype is None:
        return None
    saturate = [each for each in match.root.attributes.values() if each.name == "saturate"]
    to = ir.AttrInt64("to", match.output.dtype.value)
    return match.op("Cast", [match["x"]], [to, *saturate])


def _cast_back(match: Match) -> ir.Value | None:
    """Merge two casts between integers if the inner one keeps every value."""
    x, middle = match["x"], match.nodes["inner"].outputs[0].dtype
    if x.dtype is None or middle is None or match.output.dtype is None:
        return None
    if not (_holds(middle, x.dtype) and match.output.dtype.is_integer()):
        return None
    if x.dtype == match.output.dtype:
        return x
    return match.op("Cast", [x], [ir.AttrInt64("to", match.output.dtype.value)])


def _holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Tell whether integer type `wide` has every value of integer type `narrow`."""
    if not all(each.is_integer() and each.bitwidth >= 8 for each in (wide, narrow)):
        return False
    outer, inner = np.iinfo(wide.numpy()), np.iinfo(narrow.numpy())
    return outer.min <= inner.min and inner.max <= outer.max


def _perm(node: ir.Node) -> list[int] | None:
    """Return the permutation of a Transpose; by default the reversal."""
    perm = node.attributes.get_ints("perm")
    if perm is not None:
        return list(perm)
    rank = edit.rank(node.inputs[0])
    return None if rank is None else list(reversed(range(rank)))


def _transpose_nothing(match: Match) -> ir.Value | None:
    perm = _perm(match.root)
    return match["x"] if perm is not None and perm == sorted(perm) else None


def _transpose_twice(match: Match) -> ir.Value | None:
    outer, inner = _perm(match.root), _perm(match.nodes["inner"])
    if outer is None or inner is None or len(outer) != len(inner):
        return None
    perm = [inner[axis] for axis in outer]
    if perm == sorted(perm):
        return match["x"]
    return match.op("Transpose", [match["x"]], [ir.AttrInt64s("perm", perm)])


def _reshape_twice(match: Match) -> ir.Value | None:
    """Merge two reshapes to a constant shape that copies no dimension."""
    shape = edit.integers(match["y"])
    if shape is None or (0 in shape and not match.root.attributes.get_int("allowzero", 0)):
        return None
    attributes = [each for each in match.root.attributes.values() if each.name == "allowzero"]
    return match.op("Reshape", [match["x"], match["y"]], attributes)


def _same_shape(match: Match) -> ir.Value | None:
    """Remove an op that keeps the elements and their order, and here the shape, too."""
    return match["x"] if edit.same_static_shape(match["x"], match.output) else None


def _whole_slice(match: Match) -> ir.Value | None:
    """Remove a Slice that takes everything, forwards."""
    steps = match.root.inputs[4] if len(match.root.inputs) > 4 else None
    if steps is not None and set(edit.integers(steps) or (0,)) != {1}:
        return None
    return _same_shape(match)


def _no_padding(match: Match) -> ir.Value | None:
    """Remove a Pad by zero elements."""
    pads: Sequence[int] | None = match.root.attributes.get_ints("pads")
    if pads is None and len(match.root.inputs) > 1:
        pads = edit.integers(match.root.inputs[1])
    return match["x"] if pads is not None and not any(pads) else None


def _only_input(match: Match) -> ir.Value | None:
    """Remove a Concat, Sum, Max or Min of one input."""
    return match["x"] if len(match.root.inputs) == 1 else None


def _one_block(match: Match) -> ir.Value | None:
    return match["x"] if match.root.attributes.get_int("blocksize", 0) == 1 else None


def _neutral(match: Match) -> ir.Value | None:
    """Remove Add of 0, Sub of 0, Mul by 1, Div by 1, for floats only if the sign of zero stays.

    Only a signalling NaN would differ: the op makes it quiet.
    """
    x, constant = match["x"], edit.array(match["y"])
    if constant is None or not constant.size or not edit.same_static_shape(x, match.output):
        return None
    if constant.size > 4096 or constant.dtype.kind not in "iuf":
        return None
    neutral = np.full(constant.shape, match.root.op_type in ("Mul", "Div"), constant.dtype)
    if match.root.op_type == "Add" and constant.dtype.kind == "f":
        neutral = np.negative(neutral)  # x + 0.0 would turn -0.0 into 0.0; x + -0.0 is x
    return x if constant.tobytes() == neutral.tobytes() else None


def _neutral_first(match: Match) -> ir.Value | None:
    """Remove a neutral Add or Mul whose constant comes first."""
    match.values["x"], match.values["y"] = match["y"], match["x"]
    return _neutral(match)


def _where(match: Match) -> ir.Value | None:
    """Resolve a Where with a uniform constant condition.

    Floats are left out: onnxruntime's CPU kernel turns -0.0 into 0.0 (1.31.1).
    """
    condition = edit.array(match.root.inputs[0])
    if condition is None or not condition.size or condition.size > 4096:
        return None
    if match["x"].dtype is None or match["x"].dtype.is_floating_point():
        return None
    if bool(condition.all()):
        chosen = match["x"]
    elif not condition.any():
        chosen = match["y"]
    else:
        return None
    return chosen if edit.same_static_shape(chosen, match.output) else None


def _dimensions(match: Match) -> ir.Value | None:
    """Resolve a Gather or Slice of a shape if the dimensions that it takes are known."""
    shape, node = match["x"].shape, match.nodes["shape"]
    if shape is None:
        return None
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(shape))
    dims = list(shape)[start:end]
    places = _places(match.root, match.version, len(dims))
    if places is None or not all(isinstance(dims[place], int) for place in places.reshape(-1)):
        return None
    sizes = np.array([dim if isinstance(dim, int) else -1 for dim in dims], np.int64)
    return match.constant(ir.tensor(np.asarray(sizes[places])))


def _places(node: ir.Node, version: int, count: int) -> Array | None:
    """Return the indices of dimensions, out of `count`, that a Gather or Slice takes; None if
    unknown.
    """
    if node.op_type == "Gather":
        indices = edit.array(node.inputs[1])
        if indices is None or not indices.size:
            return None
        inside = -count <= indices.min() and indices.max() < count
        return np.asarray(indices, np.int64) if inside else None
    if version < 10:
        return None
    given = [edit.integers(value) for value in node.inputs[1:]]
    if len(given) < 2 or any(each is None or len(each) != 1 for each in given):
        return None
    (start,), (end,) = given[0] or (0,), given[1] or (0,)
    (step,) = (given[3] or (1,)) if len(given) > 3 else (1,)
    if step < 1:
        return None
    return np.arange(count)[start:end:step]


def _norm(match: Match) -> ir.Value | None:
    """Put the weights of a norm second; exports of Llama and similar models have them first.

    QNN (2.7.0) fails to compile a float32 norm that has its weights first:
    "QNN_COMMON_ERROR_MEM_ALLOC".
    """
    weights = match["y"]
    if weights.const_value is None:
        return None
    return match.op("Mul", [match.nodes["scaled"].outputs[0], weights])


RULES: tuple[Rule, ...] = (
    Rule(name="identity", pattern=Op("Identity", X), replace=_input),
    Rule(name="dropout", pattern=Op("Dropout", X), replace=_dropout),
    Rule(name="cast-to-same", pattern=Op(("Cast", "CastLike"), X), replace=_same_type),
    Rule(name="cast-like", pattern=Op("CastLike", X), replace=_cast_like),
    Rule(name="cast-cast", pattern=Op("Cast", Op("Cast", X, name="inner")), replace=_cast_back),
    Rule(name="transpose-nothing", pattern=Op("Transpose", X), replace=_transpose_nothing),
    Rule(
        name="transpose-transpose",
        pattern=Op("Transpose", Op("Transpose", X, name="inner")),
        replace=_transpose_twice,
    ),
    Rule(
        name="reshape-to-same",
        pattern=Op((*RESHAPES, "Expand", "Tile"), X),
        replace=_same_shape,
    ),
    Rule(
        name="reshape-back",
        pattern=Op(RESHAPES, Op(RESHAPES, X)),
        replace=_same_shape,
    ),
    Rule(
        name="reshape-reshape",
        pattern=Op("Reshape", Op(RESHAPES, X), Y),
        replace=_reshape_twice,
        since=5,
    ),
    Rule(name="slice-all", pattern=Op("Slice", X), replace=_whole_slice),
    Rule(name="pad-nothing", pattern=Op("Pad", X), replace=_no_padding, since=2),
    Rule(name="only-input", pattern=Op(("Concat", "Sum", "Max", "Min"), X), replace=_only_input),
    Rule(name="split-nothing", pattern=Op("Split", X), replace=_same_shape),
    Rule(
        name="one-block",
        pattern=Op(("DepthToSpace", "SpaceToDepth"), X),
        replace=_one_block,
    ),
    Rule(name="not-not", pattern=Op("Not", Op("Not", X)), replace=_input),
    Rule(name="neg-neg", pattern=Op("Neg", Op("Neg", X)), replace=_input, since=6),
    Rule(
        name="again",
        pattern=Op("Relu", Op("Relu", X, name="inner")),
        replace=lambda match: match.nodes["inner"].outputs[0],
    ),
    Rule(
        name="neutral",
        pattern=Op(("Add", "Sub", "Mul", "Div"), X, Y),
        replace=_neutral,
        since=7,
    ),
    Rule(name="neutral", pattern=Op(("Add", "Mul"), X, Y), replace=_neutral_first, since=7),
    Rule(name="where", pattern=Op("Where", Var("condition"), X, Y), replace=_where),
    ep_forms.FLAT,
    Rule(
        name="norm-weights-second",
        pattern=Op("Mul", Y, Op("Mul", X, Op("Reciprocal", Op("Sqrt")), name="scaled")),
        replace=_norm,
        since=7,
    ),
    Rule(
        name="known-dimension",
        pattern=Op(("Gather", "Slice"), Op("Shape", X, name="shape")),
        replace=_dimensions,
    ),
)


class SimplifyPass(RewritePass):
    """Apply the built-in rules."""

    def __init__(self) -> None:
        super().__init__(RULES)

    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Return counts of applications by rule."""
        return super().apply(model) if edit.opset(model) <= edit.NEWEST_OPSET else {}
