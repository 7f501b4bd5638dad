"""A random model with its inputs, and what a run of it gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from epctx.graph.prepare import inference
from epctx.inference.values import to_python
from tests.fuzz.graphs import bodies, operators
from tests.fuzz.graphs.drawing import (
    BITS2,
    BITS4,
    Array,
    Drawing,
    Rejected,
    Value,
    make_model,
    run,
)

FEWEST, MOST = 15, 220
"""Nodes of a graph."""
MOST_OUTPUTS = 16
_UNREADABLE = (*BITS4, *BITS2)
"""Types that Python cannot take from ONNX Runtime 1.31.1: a Cast makes floats of them."""

Feeds = Mapping[str, ort.OrtValue]
Outputs = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class RandomModel:
    """A model that ONNX Runtime runs, as its seed decides.

    Attributes:
        counts: nodes by operator, values by type family.
    """

    seed: int
    opset: int
    proto: onnx.ModelProto
    feeds: Feeds
    counts: Counter[str]


def draw_model(seed: int, most: int = MOST) -> RandomModel:
    """The model of a seed, of about `most` nodes at most."""
    draw = Drawing(seed)
    wanted = int(FEWEST * (most / FEWEST) ** draw.random.random())
    for _ in range(draw.random.randint(1, 4)):
        draw.input()
    while len(draw.scope.nodes) < wanted - MOST_OUTPUTS // 4:
        _grow(draw, 1)
    graph = helper.make_graph(
        draw.scope.nodes,
        "random",
        [value.info() for value in draw.inputs],
        [_declared(value) for value in _outputs(draw)],
        draw.scope.weights,
    )
    proto = make_model(graph, draw.opset)
    feeds = {value.name: value.value for value in draw.inputs}
    _declare(draw, proto, feeds)
    return RandomModel(seed=seed, opset=draw.opset, proto=proto, feeds=feeds, counts=draw.counts)


def _declare(draw: Drawing, proto: onnx.ModelProto, feeds: Feeds) -> None:
    """Let a model say what its values are: nothing, what is right, or in part what is wrong.

    What ONNX Runtime refuses is not declared: it holds some of it to what it infers. Nor is there a
    wrong shape that nobody can infer: its own optimizer believes that, too.
    """
    how = draw.random.choice(("nothing", "right", "wrong"))
    known = {value.name: value for value in draw.scope.values if not value.is_sequence}
    before = onnx.ModelProto()
    before.CopyFrom(proto)
    for info in proto.graph.output if how != "nothing" else ():
        if info.name in known:
            info.CopyFrom(known[info.name].info())
    outputs_ = {info.name for info in proto.graph.output}
    made = [name for node in proto.graph.node for name in node.output if name in known]
    for name in made if how != "nothing" else ():
        if name not in outputs_ and draw.chance(0.5):
            proto.graph.value_info.append(known[name].info())
    if how == "wrong":
        inferred = _inferred(before)
        for info in (*proto.graph.value_info, *proto.graph.output):
            dims = info.type.tensor_type.shape.dim
            if [dim.dim_value for dim in dims] == inferred.get(info.name) and draw.chance(0.3):
                draw.random.choice(dims).dim_value += draw.random.choice((1, 2))
    try:
        outputs(proto, feeds)
    except Exception:  # onnxruntime's errors have no common class
        proto.CopyFrom(before)
        how = f"nothing, {how} refused" if how != "nothing" else how
    draw.counts[f"declared {how}"] += 1


def _grow(draw: Drawing, count: int) -> None:
    for _ in range(count):
        try:
            if draw.chance(0.05):
                bodies.draw_body(draw, _grow)
            else:
                choices = operators.OPERATORS
                (operator,) = draw.random.choices(tuple(choices), tuple(choices.values()))
                operator(draw)
        except Rejected:
            draw.counts["rejected"] += 1


def _inferred(model: onnx.ModelProto) -> Mapping[str, list[int]]:
    """The shapes, not scalars', that are inferred whole; onnx alone never ends on some models."""
    found = inference.infer(model)
    known = {
        v.name: v.type.tensor_type.shape.dim for v in (*found.graph.value_info, *found.graph.output)
    }
    return {
        name: [dim.dim_value for dim in dims]
        for name, dims in known.items()
        if dims and all(dim.HasField("dim_value") for dim in dims)
    }


def _outputs(draw: Drawing) -> list[Value]:
    """What nobody uses and some of the rest, in types that Python can take."""
    made = {name for node in draw.scope.nodes for name in node.output}
    used = {name for node in draw.scope.nodes for name in node.input}
    values = [value for value in draw.scope.values if value.name in made]
    last = [value for value in values if value.name not in used]
    draw.random.shuffle(last)
    chosen = [*last[: MOST_OUTPUTS - 4], *draw.random.sample(values, min(4, len(values)))]
    found: dict[str, Value] = {}
    for value in chosen:
        try:
            if value.is_sequence:
                (length,) = draw.node("SequenceLength", [value])
                found[length.name] = length
                (value,) = draw.node("SequenceAt", [value, draw.ints(0)])
            if value.kind in _UNREADABLE:
                (value,) = draw.node("Cast", [value], to=onnx.TensorProto.FLOAT)
        except Rejected:
            continue
        found[value.name] = value
    return list(found.values())


def _declared(value: Value) -> onnx.ValueInfoProto:
    """An output's declaration, without sizes: onnx infers others than kernels make."""
    info = value.info()
    for index, dim in enumerate(info.type.tensor_type.shape.dim):
        dim.dim_param = f"{value.name}_{index}"
    return info


def outputs(model: onnx.ModelProto, feeds: Feeds) -> Outputs:
    """What ONNX Runtime's kernels make of it, no node optimized."""
    names = [value.name for value in model.graph.input]
    results = run(model, {name: feeds[name] for name in names})
    pairs = zip(model.graph.output, results, strict=True)
    return {info.name: np.asarray(to_python(result)) for info, result in pairs}


def differing(one: Outputs, other: Outputs) -> list[str]:
    """Outputs that differ in type, shape or bits; the bits of a NaN are not held to anything."""
    assert one.keys() == other.keys()
    return [name for name in one if not _same(one[name], other[name])]


def _same(left: Array, right: Array) -> bool:
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    if left.dtype.kind in "OUS":
        return bool(left.tolist() == right.tolist())
    if left.dtype.kind in "iub":
        return left.tobytes() == right.tobytes()
    nan = np.isnan(left)
    if not np.array_equal(nan, np.isnan(right)):
        return False
    zero = left.dtype.type(0)
    return bool(np.where(nan, zero, left).tobytes() == np.where(nan, zero, right).tobytes())
