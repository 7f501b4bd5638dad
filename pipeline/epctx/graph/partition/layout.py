"""Layout of a model: its nodes in the order of its layers, and the values that cross between them.

The order does not depend on the file's. Two kinds of nodes are computed again beyond a cut, so that
their outputs do not cross it:

- a DequantizeLinear with constant parameters: its integer input crosses;
- a node that is cheap to compute from the model's inputs: masks, positions, cos and sin.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Final

import onnx_ir as ir

from epctx.graph.dataflow import Dataflow
from epctx.graph.model import CutPoint
from epctx.graph.numerics import draws
from epctx.graph.partition.borders import UNKNOWN_RANK, refused
from epctx.graph.serde.ordering import bodies
from epctx.graph.weights.tensors import content_digest

_LARGE: Final = 64 * 1024
"""Weights of more bytes are compared in sharing groups, and cheap nodes never use them."""
_CHEAP_SHARE: Final = 100
"""Inverse of the share of all nodes that a cheap node and its dependencies stay below."""
_CHEAP_NODES: Final = 256
"""Number of nodes that a cheap node and its dependencies stay below; it bounds the search time."""
_KNOWN: Final = frozenset({"", "ai.onnx", "com.microsoft"})
"""Domains whose operators keep no state; operators of other domains may."""
_HEAVY: Final = frozenset({"Conv", "ConvInteger", "ConvTranspose", "DeformConv", "QLinearConv"})
"""Operators that are never cheap: the stem of a U-Net has few weights and much to compute."""

Cost = Callable[[ir.Value], int]
_Span = tuple[int, int]
"""Two nodes, for the places from the one after the first node to the one before the second."""


class Layout:
    """The nodes of a model's main graph in the order of its layers, and the places between them.

    Nodes are integers of `flow`; place `p` is the one before node `p`.

    Args:
        model: is changed; its nodes are put in order.
        following: op types whose nodes may not be cut from the nodes that make their inputs.

    Attributes:
        flow: dataflow of the nodes in this order.
        again: true for each node that is computed in every piece that needs it.
        kept: true for each node that its own piece needs in any case.
        anchors: places after nodes that lead to an output and are not computed again; each piece
            needs such a node.
        candidates: anchors at which the model may be cut, except the last.
        after: the place right after the node that makes a value, by the value's name.
        barriers: spans of places at which the model may not be cut, with the reason.
        toll: bytes that cross each place.
    """

    def __init__(self, model: ir.Model, following: Collection[str] = ()) -> None:
        self.graph = model.graph
        self._following = following
        flow = Dataflow(model)
        order = _order(flow, model.graph)
        if order != [*range(len(order))]:
            model.graph.extend([flow.nodes[node] for node in order])
            flow = Dataflow(model)
        self.flow = flow
        self.again = _computed_again(model, flow)
        self.kept = [
            not again or exposed or not any(value in flow.consumers for value in node.outputs)
            for node, again, exposed in zip(flow.nodes, self.again, flow.exposed(), strict=True)
        ]
        self.after = {v.name: node + 1 for v, node in flow.producer.items() if v.name}
        live = flow.exposed()
        for node in reversed(range(len(live))):
            for need in flow.predecessors[node] if live[node] else ():
                live[need] = True
        self.anchors = [p + 1 for p, alive in enumerate(live) if alive and not self.again[p]]
        self._set_spans()
        self.barriers = [*self._barriers()]
        closed = self._sums((span, 1) for span, _ in self.barriers)
        self.candidates = [place for place in self.anchors[:-1] if not closed[place]]
        self.toll = self._sums(
            (span, _bytes(value)) for value, span in self._crossing.items() if not _barrier(value)
        )

    def _set_spans(self) -> None:
        """Find the spans of values that cross, and of values that are computed again.

        The input of a node that is computed again crosses to all uses of that node.
        """
        flow, again = self.flow, self.again
        first, last = [*range(len(again))], [*range(len(again))]  # users of each node
        for node in reversed(range(len(again))):
            users = [u for v in flow.nodes[node].outputs for u in flow.consumers.get(v, ())]
            if again[node] and users:
                last[node] = max(last[user] for user in users)
                if not self.kept[node]:
                    first[node] = min(first[user] for user in users)
        self._crossing: dict[ir.Value, _Span] = {}
        self._recomputed: dict[ir.Value, _Span] = {}
        for value, node in flow.producer.items():
            users = flow.consumers.get(value, [])
            if again[node]:
                end = max((user for user in users if not again[user]), default=0)
                self._recomputed[value] = first[node], end
            elif users:
                self._crossing[value] = node, max(last[user] for user in users)

    def _barriers(self) -> Iterator[tuple[_Span, str]]:
        """Yield spans of values that may not cross; a value to be quantized crosses as integer."""
        for value, (start, end) in self._crossing.items():
            reason = _barrier(value)
            if reason:
                yield (start, end), f'"{value.name}" would cross: {reason}'
                continue
            for user in self.flow.consumers[value]:
                node, output = self.flow.nodes[user], self.flow.nodes[user].outputs[0]
                if node.op_type in self._following:
                    yield (start, user), f'"{value.name}" would cross: {node.op_type} follows it'
                if node.op_type == "QuantizeLinear" and not _barrier(output):
                    reason = f'"{output.name}" is made by quantizing it'
                    yield (start, user), f'"{value.name}" would cross: {reason}'

    def _sums(self, spans: Iterable[tuple[_Span, int]]) -> list[int]:
        """Return for each place the sum of the amounts of its spans."""
        steps = [0] * (len(self.kept) + 1)
        for (start, end), amount in spans:
            steps[start + 1] += amount
            steps[end + 1] -= amount
        return [*accumulate(steps)]

    def _weights(self) -> Iterator[tuple[int, ir.Value]]:
        """Yield nodes and the initializers that each brings into its piece, ascending.

        Initializers of nodes that are computed again come with the nodes that need them.
        """
        along: dict[int, dict[ir.Value, None]] = {}
        for node, used in enumerate(self.flow.uses):
            weights = dict.fromkeys(filter(self.flow.is_constant, used))
            for need in self.flow.predecessors[node]:
                weights |= along.get(need, {})
            if self.again[node]:
                along[node] = weights
            if self.kept[node]:
                yield from ((node, weight) for weight in weights)

    def blocks(self, places: Sequence[int], cost: Cost) -> list[dict[Hashable, int]]:
        """Return the costs of the initializers that are used between neighbouring places."""
        cost_once = cache(cost)
        blocks: list[dict[Hashable, int]] = [{} for _ in range(len(places) + 1)]
        for node, weight in self._weights():
            blocks[bisect_right(places, node)][weight] = cost_once(weight)
        return blocks

    def large_weights(self) -> dict[int, tuple[int, ir.Value]]:
        """Return large initializers, by digest, with their first users, ascending."""
        weights: dict[int, tuple[int, ir.Value]] = {}
        for node, weight in self._weights():
            tensor = weight.const_value
            if tensor is not None and tensor.nbytes > _LARGE:
                weights.setdefault(int(content_digest(tensor).hex, 16), (node, weight))
        return weights

    def cuts(self, reasons: Mapping[int, str]) -> tuple[CutPoint, ...]:
        """Describe cuts at these places, ascending, given the reason of each."""

        def names(spans: Mapping[ir.Value, _Span], place: int) -> tuple[str, ...]:
            return tuple(v.name or "" for v, (start, end) in spans.items() if start < place <= end)

        return tuple(
            CutPoint(
                after=self.name_before(place),
                values=names(self._crossing, place),
                bytes=self.toll[place],
                recomputed=names(self._recomputed, place),
                why=why,
            )
            for place, why in reasons.items()
        )

    def name_before(self, place: int) -> str:
        """Return the first name of a value that the node right before a place makes."""
        return next(value.name for value in self.flow.nodes[place - 1].outputs if value.name)


def _order(flow: Dataflow, graph: ir.Graph) -> list[int]:
    """Return the nodes in depth-first order from the sinks, the shallowest sink first.

    A KV-cache output of layer 0 is shallow, so that it comes with layer 0.
    """
    depth: list[int] = []
    for needs in flow.predecessors:
        depth.append(1 + max((depth[need] for need in needs), default=0))
    outputs = {value: place for place, value in reversed([*enumerate(graph.outputs)])}
    sinks = []
    for node, ir_node in enumerate(flow.nodes):
        rank = min((outputs.get(value, len(outputs)) for value in ir_node.outputs), default=0)
        if rank < len(outputs) or not any(value in flow.consumers for value in ir_node.outputs):
            names = [value.name for value in ir_node.outputs if value.name]
            sinks.append((depth[node], rank, names, node))
    stack = [node for *_, node in sorted(sinks, reverse=True)]
    seen: set[int] = set()
    order: list[int] = []
    while stack:
        node = stack.pop()
        if node < 0:  # its makers are in order
            order.append(~node)
        elif node not in seen:
            seen.add(node)
            makers = [flow.producer[value] for value in flow.uses[node] if value in flow.producer]
            makers.sort(key=depth.__getitem__, reverse=True)
            stack += [~node, *reversed(makers)]  # the deepest is next
    return order


def _computed_again(model: ir.Model, flow: Dataflow) -> list[bool]:
    """Return for each node whether every piece that needs it computes it again."""
    limit = min(len(flow.nodes) / _CHEAP_SHARE, _CHEAP_NODES)
    cones: dict[int, set[int]] = {}  # cheap nodes, each with its dependencies
    again: list[bool] = []
    for node, ir_node in enumerate(flow.nodes):
        needs = flow.predecessors[node]
        if (
            all(need in cones for need in needs)
            and ir_node.domain in _KNOWN
            and ir_node.op_type not in _HEAVY
            and ir_node.op_identifier() not in model.functions
            and not draws(ir_node.op_type, len(ir_node.inputs))
            and not any(bodies(ir_node.attributes.values()))
            and not _has_large(flow, node)
        ):
            cone = {node}.union(*(cones[need] for need in needs))
            if len(cone) < limit:
                cones[node] = cone
        again.append(node in cones or _dequantizes(flow, node, again))
    return again


def _has_large(flow: Dataflow, node: int) -> bool:
    """Tell whether a node has a large weight, as an initializer or an attribute."""
    weights = [value.const_value for value in flow.uses[node] if flow.is_constant(value)]
    for attribute in flow.nodes[node].attributes.values():
        if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
            weights.append(attribute.as_tensor())
    return any(weight is not None and weight.nbytes > _LARGE for weight in weights)


def _dequantizes(flow: Dataflow, node: int, again: Sequence[bool]) -> bool:
    """Tell whether a node dequantizes, by constants, a value that may cross instead."""
    ir_node = flow.nodes[node]
    if ir_node.op_type != "DequantizeLinear" or ir_node.domain not in _KNOWN:
        return False
    data, *parameters = ir_node.inputs
    if data is None or not all(v is None or flow.is_constant(v) for v in parameters):
        return False
    maker = flow.producer.get(data)
    return maker is None or again[maker] or _barrier(data) is None


def _barrier(value: ir.Value) -> str | None:
    """Return why a value may not cross; None if it may."""
    return refused(value) or (UNKNOWN_RANK if value.shape is None else None)


def _bytes(value: ir.Value) -> int:
    """Return the size of a tensor that may cross; unknown dimensions count 1."""
    assert value.shape is not None and value.dtype is not None
    sizes = (size for size in value.shape if isinstance(size, int))
    return math.prod(sizes) * value.dtype.bitwidth // 8
