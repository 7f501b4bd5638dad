"""A model's nodes in an order that follows its layers, and what crosses between them.

The order does not depend on the file's. Two kinds of nodes are computed again beyond a cut, so that
what they make does not cross it:

- a DequantizeLinear with constant parameters: its integer input crosses;
- a node that is cheap to compute from the model's inputs: masks, positions, cos and sin.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Final

import onnx_ir as ir

from epctx.graph.dataflow import Dataflow
from epctx.graph.model import CutPoint
from epctx.graph.partition.boundary import UNKNOWN_RANK, refused
from epctx.graph.randomness import draws
from epctx.graph.serde.ordering import bodies
from epctx.graph.weights.mapped import content_digest

_LARGE: Final = 64 * 1024
"""Weights of more bytes are compared in sharing groups, and are never used by cheap nodes."""
_CHEAP_SHARE: Final = 100
"""A node is cheap if it and all that it depends on are less than one in so many nodes."""
_CHEAP_NODES: Final = 256
"""Upper bound of the same, which bounds the time to find out."""
_KNOWN: Final = frozenset({"", "ai.onnx", "com.microsoft"})
"""Domains whose operators keep no state: an operator of another may."""
_HEAVY: Final = frozenset({"Conv", "ConvInteger", "ConvTranspose", "DeformConv", "QLinearConv"})
"""Operators that are never cheap: the stem of a U-Net has few weights and much to compute."""

Cost = Callable[[ir.Value], int]


class Layout:
    """A model's nodes in an order that follows its layers, and what crosses between them.

    Place `p` is the one before the node `order[p]`.

    Attributes:
        order: the nodes, as integers of `flow`.
        again: for each node, whether it is computed in every piece that needs it.
        candidates: the places where the model may be cut. Before, between and behind them is a node
            that leads to an output and is not computed again.
        after: for each name of a value, the place right after the node that makes it.
        anchors: the places after the nodes that a piece must have one of.
        spans: for each value that another node uses, the first and the last place that it crosses.
        toll: for each place, the bytes that cross it.
    """

    def __init__(self, model: ir.Model) -> None:
        self.flow = flow = Dataflow(model)
        self.graph = model.graph
        self.order = _order(flow, model.graph)
        self.position = [0] * len(self.order)
        for position, node in enumerate(self.order):
            self.position[node] = position
        self.again = _computed_again(model, flow)
        self.spans = self._spans()
        self.after = {
            value.name: self.position[node] + 1
            for value, node in flow.producer.items()
            if value.name
        }
        tolls, barriers = [0] * (len(self.order) + 2), [0] * (len(self.order) + 2)
        for value, (first, last) in self.spans.items():
            if _barrier(value) is None:
                tolls[first] += _bytes(value)
                tolls[last + 1] -= _bytes(value)
            stop, _ = self.barrier(value)
            if stop >= first:
                barriers[first] += 1
                barriers[stop + 1] -= 1
        self.toll = list(accumulate(tolls))
        closed = list(accumulate(barriers))
        self.anchors = self._anchors()
        self.candidates = [place for place in self.anchors[:-1] if not closed[place]]

    def _spans(self) -> dict[ir.Value, tuple[int, int]]:
        """Return the first and the last place that each value crosses, by producer.

        The input of a node that is computed again crosses to wherever that node is needed.
        """
        flow, position = self.flow, self.position
        reach = list(position)
        spans: dict[ir.Value, tuple[int, int]] = {}
        for node in reversed(self.order):
            ends = {
                value: max(reach[user] for user in flow.consumers[value])
                for value in flow.nodes[node].outputs
                if value in flow.consumers
            }
            if self.again[node]:
                own = [position[node]] if self.is_kept(node) else []
                reach[node] = max([*ends.values(), *own])
            else:
                spans |= {value: (position[node] + 1, end) for value, end in ends.items()}
        return dict(sorted(spans.items(), key=lambda item: item[1][0]))

    def is_kept(self, node: int) -> bool:
        """Return whether its own piece needs a node: it makes an output, or nothing uses it."""
        made = self.flow.nodes[node].outputs
        return any(map(self.flow.is_output, made)) or not any(
            value in self.flow.consumers for value in made
        )

    def _anchors(self) -> list[int]:
        """Return the place after each node that is not computed again and leads to an output."""
        live = self.flow.exposed()
        for node in reversed(range(len(live))):
            for need in self.flow.predecessors[node] if live[node] else ():
                live[need] = True
        return [
            place + 1
            for place, node in enumerate(self.order)
            if live[node] and not self.again[node]
        ]

    def barrier(self, value: ir.Value) -> tuple[int, str]:
        """Return the last place that a value may not cross (0: it may cross all), and why."""
        barred = _barrier(value)
        if barred is not None:
            return self.spans[value][1], barred
        last, why = 0, ""
        for user in self.flow.consumers[value]:
            node = self.flow.nodes[user]
            if (
                node.op_type == "QuantizeLinear"
                and _barrier(node.outputs[0]) is None
                and self.position[user] > last
            ):
                last = self.position[user]
                why = f'"{node.outputs[0].name}" is made by quantizing it'
        return last, why

    def weights(self) -> Iterator[tuple[int, dict[ir.Value, None]]]:
        """Yield the initializers that a node brings into its piece, with the node's position.

        Those of nodes that are computed again come with the nodes that need them.
        """
        along: dict[int, dict[ir.Value, None]] = {}
        for position, node in enumerate(self.order):
            used = dict.fromkeys(filter(self.flow.is_constant, self.flow.uses[node]))
            for need in self.flow.predecessors[node]:
                used |= along.get(need, {})
            if self.again[node]:
                along[node] = used
            if not self.again[node] or self.is_kept(node):
                yield position, used

    def blocks(self, places: Sequence[int], cost: Cost) -> list[dict[Hashable, int]]:
        """Return the costs of the initializers used between each two of these places."""
        costs: dict[ir.Value, int] = {}
        found: list[dict[Hashable, int]] = [{} for _ in range(len(places) + 1)]
        for position, weights in self.weights():
            for value in weights:
                if value not in costs:
                    costs[value] = cost(value)
                if costs[value]:
                    found[bisect_right(places, position)][value] = costs[value]
        return found

    @cached_property
    def large_weights(self) -> list[tuple[int, ir.Value, int]]:
        """Distinct large weights by first use: position, initializer, digest of the content."""
        found: dict[int, tuple[int, ir.Value]] = {}
        seen: set[ir.Value] = set()
        for position, weights in self.weights():
            for value in weights:
                if value not in seen and _is_large(value.const_value):
                    assert value.const_value is not None
                    content = int(content_digest(value.const_value).hex, 16)
                    found.setdefault(content, (position, value))
                seen.add(value)
        return [(position, value, content) for content, (position, value) in found.items()]

    def members(self, places: Sequence[int]) -> list[list[int]]:
        """Return the nodes of each piece, in order; those computed again in each that needs them.

        The first piece that needs such a node has the node itself, the others its clones.
        """
        needed: list[set[int]] = [set() for _ in self.order]
        for position in reversed(range(len(self.order))):
            node = self.order[position]
            if not self.again[node] or self.is_kept(node):
                needed[node].add(bisect_right(places, position))
            for need in self.flow.predecessors[node]:
                if self.again[need]:
                    needed[need] |= needed[node]
        found: list[list[int]] = [[] for _ in range(len(places) + 1)]
        for node in self.order:
            for piece in needed[node]:
                found[piece].append(node)
        return found

    def cuts(self, reasons: Mapping[int, str]) -> tuple[CutPoint, ...]:
        """Describe cuts at these places, given the reason of each."""
        places = sorted(reasons)
        crossing: list[list[str]] = [[] for _ in places]
        again: list[list[str]] = [[] for _ in places]
        for value, (first, last) in self.spans.items():
            for cut in range(bisect_right(places, first - 1), bisect_right(places, last)):
                crossing[cut].append(value.name or "")
        members = self.members(places)
        pieces: dict[int, list[int]] = defaultdict(list)
        for piece, nodes in enumerate(members):
            for node in nodes:
                pieces[node].append(piece)
        for node in self.order:
            for value in self.flow.nodes[node].outputs if len(pieces[node]) > 1 else ():
                users = [u for u in self.flow.consumers.get(value, ()) if not self.again[u]]
                last = max((pieces[user][0] for user in users), default=-1)
                for cut in range(pieces[node][0], last):
                    again[cut].append(value.name or "")
        return tuple(
            CutPoint(
                after=self.name_before(place),
                values=tuple(crossing[number]),
                bytes=self.toll[place],
                recomputed=tuple(again[number]),
                why=reasons[place],
            )
            for number, place in enumerate(places)
        )

    def names_before(self, place: int) -> list[str]:
        """Return the names of the values that the node right before a place makes."""
        node = self.flow.nodes[self.order[place - 1]]
        return [value.name for value in node.outputs if value.name]

    def name_before(self, place: int) -> str:
        """Return the first of these names."""
        return self.names_before(place)[0]


def _order(flow: Dataflow, graph: ir.Graph) -> list[int]:
    """Return the nodes in depth-first order from the sinks, the shallowest sink first.

    A KV-cache output of layer 0 is shallow, so that it comes with layer 0.
    """
    depth: list[int] = []
    for needs in flow.predecessors:
        depth.append(1 + max((depth[need] for need in needs), default=0))
    outputs = {value: place for place, value in reversed([*enumerate(graph.outputs)])}
    sinks = []
    for node, made in enumerate(flow.nodes):
        exposed = [outputs[value] for value in made.outputs if value in outputs]
        if exposed or not any(value in flow.consumers for value in made.outputs):
            names = [value.name for value in made.outputs if value.name]
            sinks.append((depth[node], min(exposed, default=len(outputs)), names, node))
    done, expanded = [False] * len(depth), [False] * len(depth)
    order: list[int] = []
    for *_, sink in sorted(sinks):
        stack = [sink]
        while stack:
            node = stack[-1]
            if expanded[node]:
                stack.pop()
                if not done[node]:
                    done[node] = True
                    order.append(node)
                continue
            expanded[node] = True
            makers = dict.fromkeys(flow.producer.get(value, -1) for value in flow.uses[node])
            waiting = [maker for maker in makers if maker >= 0 and not done[maker]]
            waiting.sort(key=depth.__getitem__, reverse=True)
            stack += waiting[::-1]  # the deepest is next
    return order


def _computed_again(model: ir.Model, flow: Dataflow) -> list[bool]:
    """Return for each node whether every piece that needs it computes it."""
    cheap: list[bool] = []
    again: list[bool] = []
    limit = min(len(flow.nodes) / _CHEAP_SHARE, _CHEAP_NODES)
    for node, made in enumerate(flow.nodes):
        cheap.append(
            all(cheap[need] for need in flow.predecessors[node])
            and made.domain in _KNOWN
            and made.op_type not in _HEAVY
            and made.op_identifier() not in model.functions
            and not draws(made.op_type, len(made.inputs))
            and not any(bodies(made.attributes.values()))
            and not any(map(_is_large, _tensors(flow, node)))
            and _is_small(flow, node, limit)
        )
        again.append(cheap[node] or _dequantizes(flow, node, again))
    return again


def _tensors(flow: Dataflow, node: int) -> Iterator[ir.TensorProtocol | None]:
    yield from (value.const_value for value in flow.uses[node] if flow.is_constant(value))
    for attribute in flow.nodes[node].attributes.values():
        if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
            yield attribute.as_tensor()


def _is_small(flow: Dataflow, node: int, limit: float) -> bool:
    """Return whether a node and all that it depends on are fewer nodes than `limit`."""
    cone, queue = {node}, [node]
    while queue and len(cone) < limit:
        needs = [need for need in flow.predecessors[queue.pop()] if need not in cone]
        cone.update(needs)
        queue += needs
    return len(cone) < limit


def _dequantizes(flow: Dataflow, node: int, again: Sequence[bool]) -> bool:
    """Return whether a node dequantizes a value that may cross in its place, by constants."""
    made = flow.nodes[node]
    data, *parameters = made.inputs
    if made.op_type != "DequantizeLinear" or made.domain not in _KNOWN or data is None:
        return False
    if not all(value is None or flow.is_constant(value) for value in parameters):
        return False
    maker = flow.producer.get(data)
    return maker is None or again[maker] or _barrier(data) is None


def _barrier(value: ir.Value) -> str | None:
    return refused(value) or (UNKNOWN_RANK if value.shape is None else None)


def _bytes(value: ir.Value) -> int:
    """Return the size of a tensor that may cross; unknown dimensions count 1."""
    assert value.shape is not None and value.dtype is not None
    known = (size for size in value.shape if isinstance(size, int))
    return math.prod(known) * value.dtype.bitwidth // 8


def _is_large(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is not None and tensor.nbytes > _LARGE
