"""Which layer of a drawing each node is in, and in which column each layer: near linear in size.

Layers run top to bottom, as a model is read. A model of a thousand layers would be a thread too
thin to see, so its layers are set in columns, like the text of a newspaper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

Graph = Sequence[Sequence[int]]
"""Of each node, its predecessors; in topological order, but for cycles."""

LEAST_COLUMN: Final = 6
"""Layers: what has fewer is one column."""
ASPECT: Final = 1.75
"""Width over height that columns are made for: those of the frame on a desktop."""
SLACK: Final = 0.2
"""Share of a column's layers by which its end may move to where fewer edges cross it."""


def successors(predecessors: Graph) -> list[list[int]]:
    """Of each node, the nodes that use it, ascending."""
    found: list[list[int]] = [[] for _ in predecessors]
    for node, before in enumerate(predecessors):
        for other in before:
            found[other].append(node)
    return found


def in_order(predecessors: Graph, after: Graph) -> list[int]:
    """The nodes in topological order, without those in a cycle or behind one.

    Args:
        after: the `successors`.
    """
    waiting = [len(before) for before in predecessors]
    order = [node for node, count in enumerate(waiting) if not count]
    for node in order:
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
    return order


def acyclic(predecessors: Graph) -> list[list[int]]:
    """The graph without the edges that close a cycle.

    Partitions that an EP has cut into several pieces may seem to need each other.
    """
    after = successors(predecessors)
    waiting = [len(before) for before in predecessors]
    placed = [False] * len(predecessors)
    kept: list[list[int]] = [[] for _ in predecessors]
    ready = [node for node, count in enumerate(waiting) if not count]
    ready.reverse()
    stuck = iter(range(len(predecessors)))
    for _ in predecessors:
        node = ready.pop() if ready else next(n for n in stuck if not placed[n])
        placed[node] = True
        kept[node] = [other for other in predecessors[node] if placed[other] and other != node]
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other] and not placed[other]:
                ready.append(other)
    return kept


def layers(predecessors: Graph) -> list[int]:
    """The layer of each node, from 0: after all that it needs, and close to it.

    The longest path gives it; a node with no more inputs than outputs (a weight's dequantization,
    say) then moves down to where it is needed.
    """
    after = successors(predecessors)
    order = in_order(predecessors, after)
    found = [0] * len(predecessors)
    for node in order:
        found[node] = max((found[other] + 1 for other in predecessors[node]), default=0)
    for node in reversed(order):
        if after[node] and len(predecessors[node]) < len(after[node]):
            found[node] = max(found[node], min(found[other] for other in after[node]) - 1)
        elif after[node] and not predecessors[node]:
            found[node] = min(found[other] for other in after[node]) - 1
    return found


def columns(
    layer: Sequence[int], predecessors: Graph, pitch: tuple[float, float], gutter: float
) -> list[int]:
    """The column of each layer, from 0.

    Args:
        layer: of each node.
        pitch: width and height that a node takes.
        gutter: space between two columns.
    """
    height = max(layer, default=-1) + 1
    widths = [0] * height
    for each in layer:
        widths[each] += 1
    mean = sum(widths) / height if height else 1.0
    wanted = math.sqrt(height * (mean * pitch[0] + gutter) / (ASPECT * pitch[1]))
    length = max(LEAST_COLUMN, math.ceil(wanted))
    if height <= length * (1 + SLACK):
        return [0] * height
    length = math.ceil(height / math.ceil(height / length))
    crossing = _crossing(layer, predecessors, height)
    found: list[int] = []
    column = 0
    while len(found) < height:
        end = len(found) + length
        slack = int(length * SLACK)
        if end + slack < height:
            near = range(end - slack, end + slack + 1)
            end = min(near, key=lambda cut: (crossing[cut], abs(cut - end)))
        else:
            end = height
        found.extend([column] * (end - len(found)))
        column += 1
    return found


def _crossing(layer: Sequence[int], predecessors: Graph, height: int) -> list[int]:
    """Of each layer, how many edges come from above it into it or to below it."""
    changes = [0] * (height + 1)
    for node, before in enumerate(predecessors):
        for other in before:
            changes[layer[other] + 1] += 1
            changes[layer[node] + 1] -= 1
    found, count = [], 0
    for change in changes:
        count += change
        found.append(count)
    return found
