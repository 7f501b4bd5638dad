"""The parts that a model is drawn in first: partitions, and runs of what the default EP has.

ONNX Runtime's EPs decide inside the partition that they are given (real-eps.md section 4): where
they leave a node in the middle, the partition comes out in pieces, one context each, and is drawn
as these. A piece is what can run together: it needs nothing that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from epctx.commands.report.layering import in_order, successors
from epctx.graph.model import Outline

DEFAULT_EP: Final = -1


def units(outline: Outline) -> list[int]:
    """The unit of each node; units are numbered by their first nodes."""
    keys = _keys(outline, {})
    torn = _in_cycles(outline, keys)
    if torn:
        keys = _keys(outline, {owner: _pieces(outline, owner) for owner in torn})
    numbers: dict[tuple[int, int], int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def pieces(outline: Outline, numbers: Sequence[int]) -> dict[int, list[int]]:
    """Of each partition, its units in order; `numbers`: of each node, as `units` has it."""
    found: dict[int, dict[int, None]] = {}
    for owner, number in zip(outline.owners, numbers, strict=True):
        if owner != DEFAULT_EP:
            found.setdefault(owner, {})[number] = None
    return {owner: list(each) for owner, each in found.items()}


def _keys(outline: Outline, torn: dict[int, list[int]]) -> list[tuple[int, int]]:
    """Of each node what its unit has in common: owner and piece, or the run's first node."""
    after = successors(outline.predecessors)
    found: list[tuple[int, int]] = []
    for node, (owner, before) in enumerate(zip(outline.owners, outline.predecessors, strict=True)):
        if owner != DEFAULT_EP:
            found.append((owner, torn[owner][node] if owner in torn else 0))
            continue
        last = before[0] if len(before) == 1 else None
        goes_on = last is not None and outline.owners[last] == owner and len(after[last]) == 1
        found.append(found[last] if last is not None and goes_on else (owner, node))
    return found


def _in_cycles(outline: Outline, keys: Sequence[tuple[int, int]]) -> list[int]:
    """The partitions that are in a cycle of units, or between two."""
    numbers: dict[tuple[int, int], int] = {}
    mine = [numbers.setdefault(key, len(numbers)) for key in keys]
    needs: list[set[int]] = [set() for _ in numbers]
    for node, before in enumerate(outline.predecessors):
        needs[mine[node]].update(mine[other] for other in before)
    graph = [sorted(each - {unit}) for unit, each in enumerate(needs)]
    after = successors(graph)
    sound = {*in_order(graph, after), *in_order(after, graph)}
    return [owner for (owner, _), unit in numbers.items() if owner >= 0 and unit not in sound]


def _pieces(outline: Outline, owner: int) -> list[int]:
    """Of each node the piece of a partition that it is in; of others, the last one before it."""
    found: list[int] = []
    for mine, before in zip(outline.owners, outline.predecessors, strict=True):
        if mine == owner:
            least = 0
            for other in before:
                left = outline.owners[other] != owner
                least = max(least, found[other] + 1 if left else found[other])
            found.append(least)
        else:
            found.append(max((found[other] for other in before), default=-1))
    return found
