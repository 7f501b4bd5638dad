"""How If, Loop and Scan are drawn: bodies that use values of the graphs around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import onnx
from onnx import helper

from tests.fuzz.graphs.drawing import BITS2, BITS4, BOOL, INT64, Drawing, Rejected, Scope, Value

DEEPEST = 2
Grow = Callable[[Drawing, int], None]
"""Adds about so many nodes to the scope that a drawing is in."""


def draw_body(draw: Drawing, grow: Grow) -> None:
    """One of the three; nothing where bodies are deep enough."""
    if _depth(draw.scope) < DEEPEST:
        draw.random.choice((_if, _if, _loop, _scan))(draw, grow)


def _depth(scope: Scope) -> int:
    return 0 if scope.outer is None else 1 + _depth(scope.outer)


@contextmanager
def _body(draw: Drawing, *, repeats: bool = False) -> Iterator[Scope]:
    outer = draw.scope
    draw.scope = Scope(outer=outer, repeats=repeats or outer.repeats)
    try:
        yield draw.scope
    finally:
        draw.scope = outer


def _graph(scope: Scope, inputs: list[Value], outputs: list[Value], name: str) -> onnx.GraphProto:
    return helper.make_graph(
        scope.nodes,
        name,
        [_untold(value) for value in inputs],
        [_untold(value) for value in outputs],
        scope.weights,
    )


def _untold(value: Value) -> onnx.ValueInfoProto:
    """Its name and type: a body's shapes may differ from run to run."""
    return helper.make_tensor_value_info(value.name, value.kind, None)


def _made(draw: Drawing, kind: int | None = None) -> Value:
    """What a body gives: a value of its own, made by a node."""
    scope = draw.scope
    names = {name for node in scope.nodes for name in node.output}
    own = [
        v for v in scope.values if v.name in names and not v.is_sequence and kind in (None, v.kind)
    ]
    if own and draw.chance(0.8):
        return draw.random.choice(own)
    return draw.node("Identity", [draw.pick(() if kind is None else (kind,))])[0]


def _collected(draw: Drawing) -> Value:
    """What each run of a body adds to an output."""
    made = _made(draw)
    if made.kind in (*BITS4, *BITS2):
        raise Rejected("ONNX Runtime 1.31.1 aborts where a Loop collects less than bytes")
    return made


def _distinct(draw: Drawing, outputs: list[Value]) -> list[Value]:
    """The same values, copies of those that are there twice."""
    found: list[Value] = []
    for value in outputs:
        twice = any(value.name == each.name for each in found)
        found.append(draw.node("Identity", [value])[0] if twice else value)
    return found


def _if(draw: Drawing, grow: Grow) -> None:
    condition = draw.literal(np.array(draw.chance(0.5)), BOOL)
    if draw.chance(0.5):
        scalars = [v for v in draw.scope.visible() if not v.is_sequence and v.shape == ()]
        condition = draw.random.choice([v for v in scalars if v.kind == BOOL])
    branches: list[onnx.GraphProto] = []
    made: list[list[Value]] = []
    for name in ("then_branch", "else_branch"):
        with _body(draw) as scope:
            grow(draw, draw.random.randint(1, 5))
            count = draw.random.randint(1, 2)
            wanted = [value.kind for value in made[0]] if made else [None] * count
            outputs = [_made(draw, kind) for kind in wanted]
            outputs = _distinct(draw, outputs)
            made.append(outputs)
            branches.append(_graph(scope, [], outputs, name))
    shapes = [[value.shape for value in each] for each in made]
    if draw.opset < 11 and shapes[0] != shapes[1]:
        raise Rejected("before opset 11 both branches make the same shapes")
    draw.node("If", [condition], len(made[0]), then_branch=branches[0], else_branch=branches[1])


def _formal(draw: Drawing, like: Value) -> Value:
    """A body's input that has a value."""
    made = Value(name=draw.name(), kind=like.kind, value=like.value)
    draw.scope.values.append(made)
    return made


def _loop(draw: Drawing, grow: Grow) -> None:
    carried = [draw.pick() for _ in range(draw.random.randint(0, 2))]
    count = draw.random.randint(0 if carried else 1, 4)
    trips, going = draw.ints(count), draw.literal(np.array(True), BOOL)
    zero = draw.literal(np.array(0, np.int64), INT64)
    with _body(draw, repeats=True) as scope:
        formal = [_formal(draw, value) for value in (zero, going, *carried)]
        grow(draw, draw.random.randint(1, 5))
        (again,) = draw.node("Identity", [formal[1]])
        outputs = [again, *(_made(draw, value.kind) for value in carried)]
        if count:  # of none, ONNX Runtime gives as many dimensions as it could infer
            outputs.append(_collected(draw))
        body = _graph(scope, formal, _distinct(draw, outputs), "body")
        for value in body.input[:2]:  # ONNX Runtime allocates these two, and wants to know how much
            value.type.tensor_type.shape.SetInParent()
    draw.node("Loop", [trips, going, *carried], len(outputs) - 1, body=body)


def _scan(draw: Drawing, grow: Grow) -> None:
    state = [draw.pick()] if draw.chance(0.6) else []
    scanned = draw.pick(least_rank=1)
    axis = draw.random.choice((0, 0, draw.random.randrange(len(scanned.shape))))
    if not scanned.shape[axis]:
        raise Rejected("nothing to scan")
    (row,) = draw.node("Gather", [scanned, draw.ints(0)], axis=axis)
    with _body(draw, repeats=True) as scope:
        formal = [_formal(draw, value) for value in (*state, row)]
        grow(draw, draw.random.randint(1, 4))
        outputs = [*(_made(draw, value.kind) for value in state), _collected(draw)]
        body = _graph(scope, formal, _distinct(draw, outputs), "body")
    rank = len(outputs[-1].shape) + 1
    attributes: dict[str, object] = {"num_scan_inputs": 1}
    if axis or draw.chance(0.2):
        attributes["scan_input_axes"] = [
            axis - len(scanned.shape) * (draw.opset >= 11 and draw.chance(0.3))
        ]
    if draw.chance(0.4) and outputs[-1].size:  # of nothing, ONNX Runtime 1.31.1 divides by zero
        place = draw.random.randrange(rank)
        attributes["scan_output_axes"] = [place - rank * (draw.opset >= 11 and draw.chance(0.3))]
    if draw.chance(0.3):
        attributes["scan_input_directions"] = [draw.random.randint(0, 1)]
    if draw.chance(0.3):
        attributes["scan_output_directions"] = [draw.random.randint(0, 1)]
    draw.node("Scan", [*state, scanned], len(outputs), body=body, **attributes)
