"""Bonds: values that may be inside a partition but may not cross its border.

Nodes that a bond ties together are in one partition or in none. A bond whose nodes cannot be
together is settled by dropping nodes from the EP, until no value crosses that may not.
Source: design section 7, "partition": a partition's boundary carries only types that the EPContext
op accepts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct


class Bond(Struct, frozen=True, kw_only=True):
    """A value that ties its producer and its consumers together.

    Attributes:
        producer: the node that makes it; -1: an input of the model.
        consumers: the nodes that use it, each once.
        exposed: it is an output of the model.
        one_way: it may enter a partition, but not leave one.
        reason: why, as the user reads it.
    """

    producer: int
    consumers: tuple[int, ...]
    exposed: bool = False
    one_way: bool = False
    reason: str


def respect(bonds: Iterable[Bond], wanted: list[bool], dropped: dict[int, str]) -> None:
    """Drop from `wanted` every node that a bond ties to something outside.

    Afterwards each bond has all its nodes wanted, or none (one way: or its producer is not).
    Linear: a bond acts at most once, since it then has nothing left to drop.
    """
    queue = list(bonds)
    of_node: dict[int, list[Bond]] = defaultdict(list)
    for bond in queue:
        for node in (bond.producer, *bond.consumers):
            of_node[node].append(bond)
    settled: set[int] = set()
    while queue:
        bond = queue.pop()
        if id(bond) in settled:
            continue
        made_inside = bond.producer >= 0 and wanted[bond.producer]
        if made_inside and not bond.exposed and all(wanted[node] for node in bond.consumers):
            continue
        settled.add(id(bond))
        tied = (bond.producer,) if bond.one_way else (bond.producer, *bond.consumers)
        for node in tied:
            if node >= 0 and wanted[node]:
                wanted[node] = False
                dropped[node] = bond.reason
                queue.extend(of_node[node])


def condense(
    predecessors: Sequence[Sequence[int]],
    bonds: Sequence[Bond],
    wanted: list[bool],
    dropped: dict[int, str],
) -> tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]:
    """Contract what is tied together; drop what cannot be, because a path outside runs between.

    Nodes tied to each other, and supported nodes on paths between them, become one group. If such
    a path runs through a node that is not wanted, its ends cannot be in one partition. Of several
    ties that are in each other's way, the later half is dropped and the rest tried again.

    Args:
        predecessors: of an acyclic graph.
        bonds: settled.
        wanted: changed: nodes that are dropped become False.
        dropped: changed: why each node was dropped.

    Returns:
        Groups in topological order, each ascending, all wanted or all not; and for each group the
        groups that it needs.
    """
    while True:
        group_of, reason_of = _tie(len(predecessors), bonds, wanted)
        if not reason_of:
            return list(zip(range(len(predecessors)), strict=True)), predecessors
        found = list(components(predecessors, group_of))
        conflicts = [
            [node for node in component if node in reason_of]
            for component in found
            if not all(wanted[node] for node in component)
        ]
        if not any(conflicts):
            return found, needs_of(found, predecessors)
        for tied in filter(None, conflicts):
            ties = sorted({group_of[node] for node in tied})
            losers = set(ties[len(ties) // 2 :])
            for node in tied:
                if group_of[node] in losers:
                    wanted[node] = False
                    dropped[node] = f"{reason_of[node]}, and a node outside stands in between"


def _tie(
    count: int, bonds: Iterable[Bond], wanted: Sequence[bool]
) -> tuple[list[int], dict[int, str]]:
    """For each node the least node that it is tied to, itself included; and why, for tied ones."""
    root = list(range(count))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    reason_of: dict[int, str] = {}
    for bond in bonds:
        if bond.producer < 0 or not wanted[bond.producer] or not bond.consumers:
            continue
        for node in (bond.producer, *bond.consumers):
            reason_of.setdefault(node, bond.reason)
            low, high = sorted((find(bond.producer), find(node)))
            root[high] = low
    return [find(node) for node in range(count)], reason_of


def components(
    predecessors: Sequence[Sequence[int]], group_of: Sequence[int]
) -> Iterator[list[int]]:
    """Strongly connected components of the contracted graph, as nodes, in topological order.

    Tarjan's algorithm, without recursion, along edges to predecessors: a component comes after
    all that it needs.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for node, group in enumerate(group_of):
        members[group].append(node)

    def needs(group: int) -> Iterator[int]:
        return (group_of[p] for node in members[group] for p in predecessors[node])

    index: dict[int, int] = {}
    low: dict[int, int] = {}
    open_groups: list[int] = []
    is_open: set[int] = set()
    for start in members:
        if start in index:
            continue
        walk = [(start, needs(start))]
        index[start] = low[start] = len(index)
        open_groups.append(start)
        is_open.add(start)
        while walk:
            group, rest = walk[-1]
            step = next(rest, None)
            if step is None:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[group])
                if low[group] == index[group]:
                    component: list[int] = []
                    while not component or component[-1] != group:
                        component.append(open_groups.pop())
                    is_open.difference_update(component)
                    yield sorted(node for found in component for node in members[found])
            elif step not in index:
                index[step] = low[step] = len(index)
                open_groups.append(step)
                is_open.add(step)
                walk.append((step, needs(step)))
            elif step in is_open:
                low[group] = min(low[group], index[step])


def needs_of(
    groups: Sequence[Sequence[int]], predecessors: Sequence[Sequence[int]]
) -> list[list[int]]:
    """For each group the other groups that hold a predecessor of one of its nodes."""
    where = {node: index for index, group in enumerate(groups) for node in group}
    return [
        sorted({where[p] for node in group for p in predecessors[node]} - {index})
        for index, group in enumerate(groups)
    ]
