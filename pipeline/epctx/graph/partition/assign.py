"""Partitioning on graphs of integers: nodes are assigned to EPs, and no partitions make a cycle.

A graph is the list of its nodes' predecessors, in topological order: every predecessor of node `i`
is less than `i`. One execution provider supports some of the nodes. The *level* of a supported node
is the greatest number of times that a path from the graph's start to it has left the supported
nodes and come back; the supported nodes of one level are one partition. Then

- each partition is convex, and all of them together make no cycle: an edge never leads to a
  partition of a lower level, and a path that leaves a partition comes back on a higher one;
- their number is the least possible: a path that comes back k times needs k + 1 partitions;
- each is maximal: such a longest path runs through every level, so any two joined make a cycle.

Parts of one level that do not touch each other stay one partition, since a context for each of them
costs a file entry, a call and a copy at run time, and gains nothing. That is also how ONNX Runtime
groups nodes (`CreateSupportedPartitions`).

A bond is a value that may be inside a partition but may not cross its border, since the EPContext
op does not accept its type. Nodes that a bond ties together are in one partition or in none. If
they cannot be together, nodes are dropped from the EP until no such value crosses.

EPs are asked in priority order: each partition of an EP is fused to one node before the next EP is
asked. Everything is linear in nodes and edges. Source: design section 7, "partition".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct


class Bond(Struct, frozen=True, kw_only=True):
    """A value that ties its producer and its consumers together.

    Attributes:
        producer: the node that makes it; -1 for an input of the model.
        consumers: the nodes that use it, each once.
        exposed: true for an output of the model.
        one_way: true if it may enter a partition, but not leave one.
        reason: the reason why the nodes are tied, for the user.
    """

    producer: int
    consumers: tuple[int, ...]
    exposed: bool = False
    one_way: bool = False
    reason: str


def respect(bonds: Iterable[Bond], wanted: list[bool], dropped: dict[int, str]) -> None:
    """Drop from `wanted` every node that a bond ties to a node outside.

    Afterwards, all nodes of a bond are wanted, or none is. A one-way bond may also have an unwanted
    producer and wanted consumers. The search is linear: a bond drops nodes at most once, since none
    of its nodes is left then.
    """
    queue = list(bonds)
    of_node: dict[int, list[Bond]] = defaultdict(list)
    for bond in queue:
        for node in (bond.producer, *bond.consumers):
            of_node[node].append(bond)
    broken: set[int] = set()
    while queue:
        bond = queue.pop()
        if id(bond) in broken:
            continue
        made_inside = bond.producer >= 0 and wanted[bond.producer]
        if made_inside and not bond.exposed and all(wanted[node] for node in bond.consumers):
            continue
        broken.add(id(bond))
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
    """Contract nodes that are tied together; drop tied nodes that a path outside connects.

    Nodes tied to each other, and supported nodes on paths between them, become one group. If such a
    path runs through a node that is not wanted, its ends cannot be in one partition. The later half
    of conflicting ties is dropped, and the rest is tried again.

    Args:
        predecessors: an acyclic graph.
        bonds: bonds that `respect` has handled.
        wanted: is changed; dropped nodes become False.
        dropped: is changed; gets the reasons of dropped nodes.

    Returns:
        Groups in topological order, and for each group the groups that it needs. The nodes of a
        group are in ascending order, and all of them are wanted or none is.
    """
    while True:
        group_of, reason_of = _tie(len(predecessors), bonds, wanted)
        if not reason_of:
            return list(zip(range(len(predecessors)), strict=True)), predecessors
        groups = list(components(predecessors, group_of))
        conflicts = [
            [node for node in component if node in reason_of]
            for component in groups
            if not all(wanted[node] for node in component)
        ]
        if not any(conflicts):
            return groups, needs_of(groups, predecessors)
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
    """Return for each node the least node that it is tied to, itself included; and reasons
    of ties.
    """
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
    """Yield strongly connected components of the contracted graph, as nodes, in topological order.

    This is Tarjan's algorithm, without recursion, along edges to predecessors: a component comes
    after all components that it needs.
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
                    yield sorted(node for member in component for node in members[member])
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
    """Return for each group the other groups with a predecessor of one of its nodes."""
    where = {node: index for index, group in enumerate(groups) for node in group}
    return [
        sorted({where[p] for node in group for p in predecessors[node]} - {index})
        for index, group in enumerate(groups)
    ]


Predecessors = Sequence[Sequence[int]]

PLAIN: Final = -1
"""The owner of a node that no EP has taken."""


class Quotient(Struct, frozen=True, kw_only=True):
    """A graph whose nodes are groups of another graph's nodes, in topological order.

    Attributes:
        members: nodes of each group, ascending.
        predecessors: groups that each group needs, without itself.
        owner: EP that takes each group, or PLAIN; a PLAIN group has one node.
    """

    members: Sequence[Sequence[int]]
    predecessors: Predecessors
    owner: Sequence[int]

    @classmethod
    def of(cls, predecessors: Predecessors) -> Quotient:
        """Return the graph itself: every node is a group, and no EP has taken any."""
        count = len(predecessors)
        return cls(
            members=[[node] for node in range(count)],
            predecessors=predecessors,
            owner=[PLAIN] * count,
        )

    def partitions(self) -> Iterable[tuple[int, Sequence[int]]]:
        """Yield every partition as (EP, nodes), in topological order."""
        return (
            (owner, members)
            for owner, members in zip(self.owner, self.members, strict=True)
            if owner != PLAIN
        )


class Border(Struct, frozen=True, kw_only=True):
    """Facts about a graph's nodes that follow from the whole model.

    Attributes:
        constant: true for each node whose inputs are known before the model runs: they are
            initializers or outputs of such nodes, or the node has no inputs.
        exposed: true for each node that makes an output of the model.
        must_stay_together: bonds, for values that may not cross a partition's border.
    """

    constant: Sequence[bool]
    exposed: Sequence[bool]
    must_stay_together: Sequence[Bond] = ()


def levels(predecessors: Predecessors, supported: Sequence[bool]) -> list[int]:
    """Return the level of each node: >= 0 for a supported one, >= -1 for any other."""
    level: list[int] = []
    for node, needs in enumerate(predecessors):
        own = supported[node]
        highest = 0 if own else -1
        for need in needs:
            reached = level[need] + (1 if own and not supported[need] else 0)
            if reached > highest:
                highest = reached
        level.append(highest)
    return level


def segments(predecessors: Predecessors, supported: Sequence[bool]) -> Quotient:
    """Return the supported nodes in the fewest partitions (owner 0), the others as PLAIN groups.

    Groups come in an order in which they can run.
    """
    count = len(predecessors)
    border = Border(constant=[False] * count, exposed=[True] * count)
    return take(Quotient.of(predecessors), 0, supported, border, min_nodes=1)[0]


def assign(
    predecessors: Predecessors,
    supported: Sequence[Sequence[bool]],
    border: Border,
    *,
    min_nodes: int = 1,
    max_partitions: int | None = None,
    before: int = 0,
) -> tuple[Quotient, list[dict[int, str]]]:
    """Give every EP, in priority order, its partitions.

    Args:
        predecessors: the graph.
        supported: for each EP, whether it can take each node.
        border: border of the graph.
        min_nodes: least number of nodes in a partition; smaller ones are left to later EPs.
        max_partitions: maximum number of partitions of all EPs together. The largest stay, at equal
            size those of the first EP and place; others are left to later EPs.
        before: number of partitions that the graph already has, as nodes that no EP supports.

    Returns:
        The graph with all partitions fused, and for each EP the reasons why nodes that it supports,
        and that no earlier EP has taken, are in none of its partitions.
    """
    offered = [list(own) for own in supported]
    surplus: list[dict[int, str]] = [{} for _ in offered]
    while True:
        graph = Quotient.of(predecessors)
        reasons = []
        for provider, own in enumerate(offered):
            graph, dropped = take(graph, provider, own, border, min_nodes=min_nodes)
            reasons.append(surplus[provider] | dropped)
        partitions = list(graph.partitions())
        if max_partitions is None or len(partitions) <= max(0, max_partitions - before):
            return graph, reasons
        sizes = [(-len(nodes), owner, i) for i, (owner, nodes) in enumerate(partitions)]
        for *_, index in sorted(sizes)[max(0, max_partitions - before) :]:
            provider, nodes = partitions[index]
            reason = f"partition of size {len(nodes)} is beyond max_partitions {max_partitions}"
            for node in nodes:
                offered[provider][node] = False
                surplus[provider][node] = reason


def take(
    graph: Quotient,
    provider: int,
    supported: Sequence[bool],
    border: Border,
    *,
    min_nodes: int,
) -> tuple[Quotient, dict[int, str]]:
    """Give an EP its partitions of the nodes that earlier EPs left.

    Args:
        graph: partitions so far.
        provider: the EP's number in `owner`.
        supported: whether this EP can take each node of the original graph.
        border: border of the original graph.
        min_nodes: least number of nodes in a partition.

    Returns:
        The graph with the EP's partitions fused, and the reasons why supported nodes that no EP
        had taken are in none of them.
    """
    dropped: dict[int, str] = {}
    plain = [owner == PLAIN for owner in graph.owner]
    first = [members[0] for members in graph.members]
    wanted = [p and supported[node] for p, node in zip(plain, first, strict=True)]
    constant = [p and border.constant[node] for p, node in zip(plain, first, strict=True)]
    exposed = [any(border.exposed[node] for node in members) for members in graph.members]
    _drop_dead(graph.predecessors, wanted, exposed, dropped)
    bonds = _lift(border.must_stay_together, graph)
    unsettled = True
    while unsettled:
        respect(bonds, wanted, dropped)
        groups, needs = condense(graph.predecessors, bonds, wanted, dropped)
        unsettled = _drop_foreign_constants(graph.predecessors, wanted, constant, exposed, dropped)

    inside = [wanted[group[0]] for group in groups]
    level = levels(needs, inside)
    _sink(needs, inside, [all(constant[n] for n in group) for group in groups], level)
    level_of = [0] * len(wanted)
    for own, group in zip(level, groups, strict=True):
        for node in group:
            level_of[node] = own
    kept = _accept(wanted, level_of, min_nodes, dropped)
    fused = _fuse(graph, provider, wanted, level_of, kept)
    return fused, {first[node]: reason for node, reason in dropped.items()}


def _drop_dead(
    predecessors: Predecessors,
    wanted: list[bool],
    exposed: Sequence[bool],
    dropped: dict[int, str],
) -> None:
    """Drop nodes that no output of the model depends on, so every partition has a used output."""
    live = list(exposed)
    for node in reversed(range(len(wanted))):
        if live[node]:
            for need in predecessors[node]:
                live[need] = True
        elif wanted[node]:
            wanted[node] = False
            dropped[node] = "no output of the model depends on it"


def _drop_foreign_constants(
    predecessors: Predecessors,
    wanted: list[bool],
    constant: Sequence[bool],
    exposed: Sequence[bool],
    dropped: dict[int, str],
) -> bool:
    """Drop nodes that compute from constants and that only other EPs use: no context is made of
    them.

    Returns True if a node was dropped.
    """
    used = list(exposed)
    changed = False
    for node in reversed(range(len(wanted))):
        if wanted[node] and constant[node] and not used[node]:
            wanted[node] = False
            dropped[node] = "needs no input of the model, and no node of this EP uses it"
            changed = True
        if wanted[node]:
            for need in predecessors[node]:
                used[need] = True
    return changed


def _sink(
    predecessors: Predecessors,
    supported: Sequence[bool],
    constant: Sequence[bool],
    level: list[int],
) -> None:
    """Move constants down to the first partition that uses them, in place.

    Only a constant's consumers limit how far it can move. A weight that its own partition computes
    does not cross a border. No partition loses the nodes that make it necessary: a node on a path
    that leaves it and comes back cannot move.
    """
    bound = [len(level)] * len(level)
    for node in reversed(range(len(level))):
        if constant[node] and supported[node] and bound[node] < len(level):
            level[node] = bound[node]
        for need in predecessors[node]:
            bound[need] = min(bound[need], level[node])


def _accept(
    wanted: Sequence[bool], level: Sequence[int], min_nodes: int, dropped: dict[int, str]
) -> list[bool]:
    """Return for each level whether it is large enough to become a partition."""
    nodes: list[list[int]] = [[] for _ in range(max(level, default=0) + 1)]
    for node, own in enumerate(wanted):
        if own:
            nodes[level[node]].append(node)
    for partition in nodes:
        if len(partition) < min_nodes:
            reason = f"partition of size {len(partition)} is below min_nodes {min_nodes}"
            dropped.update(dict.fromkeys(partition, reason))
    return [len(partition) >= min_nodes for partition in nodes]


def _fuse(
    graph: Quotient,
    provider: int,
    wanted: Sequence[bool],
    level: Sequence[int],
    kept: Sequence[bool],
) -> Quotient:
    """Return the quotient after one EP, in this order: partition 0, the nodes that need no later
    partition, partition 1, and so on.
    """
    count = max(level, default=0) + 1
    buckets: list[list[int]] = [[] for _ in range(2 * count + 1)]
    for node, own in enumerate(level):
        buckets[2 * own + (1 if wanted[node] else 2)].append(node)
    groups: list[list[int]] = []
    owner: list[int] = []
    for place, bucket in enumerate(buckets):
        if not bucket:
            continue
        if place % 2 and kept[place // 2]:
            groups.append(bucket)
            owner.append(provider)
        else:
            groups.extend([node] for node in bucket)
            owner.extend(graph.owner[node] for node in bucket)
    members = [sorted(m for node in group for m in graph.members[node]) for group in groups]
    needs = needs_of(groups, graph.predecessors)
    return Quotient(members=members, predecessors=needs, owner=owner)


def _lift(bonds: Sequence[Bond], graph: Quotient) -> list[Bond]:
    """Return the bonds of the original graph as bonds of the quotient."""
    if not bonds:
        return []
    where = {node: index for index, members in enumerate(graph.members) for node in members}
    where[-1] = -1
    return [
        Bond(
            producer=where[bond.producer],
            consumers=tuple(dict.fromkeys(where[node] for node in bond.consumers)),
            exposed=bond.exposed,
            one_way=bond.one_way,
            reason=bond.reason,
        )
        for bond in bonds
    ]
