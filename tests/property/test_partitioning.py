"""What the partitioner promises, against brute force on every small graph that hypothesis finds."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from epctx.graph.partition.assign import PLAIN, Bond, Border, Quotient, assign, levels, segments
from tests.kit import strategies


def reachable(predecessors: list[list[int]]) -> list[set[int]]:
    """For each node everything that it depends on."""
    found: list[set[int]] = []
    for needs in predecessors:
        found.append(set(needs).union(*(found[need] for need in needs)))
    return found


def owner_of(graph: Quotient) -> dict[int, int]:
    """For each node the partition that it is in, by index into the quotient."""
    return {
        node: index
        for index, (owner, members) in enumerate(zip(graph.owner, graph.members, strict=True))
        if owner != PLAIN
        for node in members
    }


def check_quotient(graph: Quotient, predecessors: list[list[int]]) -> None:
    """Complete, each node once, order kept, acyclic, and exactly the original's edges."""
    assert sorted(n for members in graph.members for n in members) == list(range(len(predecessors)))
    assert all(list(members) == sorted(members) for members in graph.members)
    where = {node: index for index, members in enumerate(graph.members) for node in members}
    for index, (members, needs) in enumerate(zip(graph.members, graph.predecessors, strict=True)):
        wanted = {where[need] for node in members for need in predecessors[node]} - {index}
        assert set(needs) == wanted
        assert all(need < index for need in needs)
        assert len(members) == 1 or graph.owner[index] != PLAIN


def check_convex(graph: Quotient, predecessors: list[list[int]]) -> None:
    """No path leaves a partition and comes back."""
    before = reachable(predecessors)
    for _, members in graph.partitions():
        inside = set(members)
        for outside in set(range(len(predecessors))) - inside:
            assert not (before[outside] & inside and any(outside in before[m] for m in inside))


def joined_makes_cycle(graph: Quotient, one: int, two: int) -> bool:
    """Whether two groups, joined, would be on a cycle: a path between them through a third."""
    before = reachable([list(needs) for needs in graph.predecessors])
    low, high = sorted((one, two))
    return any(low in before[third] and third in before[high] for third in range(low + 1, high))


def longest_alternation(predecessors: list[list[int]], supported: list[bool]) -> int:
    """The most separate runs of supported nodes on one path, path by path."""
    best = [0] * len(predecessors)

    def walk(node: int, runs: int, inside: bool) -> None:
        runs += supported[node] and not inside
        best[node] = max(best[node], runs)
        for need in predecessors[node]:
            walk(need, runs, supported[node])

    for node in range(len(predecessors)):
        walk(node, 0, False)
    return max(best, default=0)


@given(st.data())
def test_one_ep_gets_the_fewest_and_largest_partitions(data: st.DataObject) -> None:
    predecessors = data.draw(strategies.dags(max_nodes=12))
    supported = data.draw(strategies.masks(len(predecessors)))
    graph = segments(predecessors, supported)
    check_quotient(graph, predecessors)
    check_convex(graph, predecessors)
    owner = owner_of(graph)
    assert sorted(owner) == [node for node, own in enumerate(supported) if own]
    own = sorted(set(owner.values()))
    assert len(own) == longest_alternation(predecessors, supported)
    assert all(joined_makes_cycle(graph, a, b) for a, b in combinations(own, 2))


@given(st.data())
def test_several_eps_in_priority_order(data: st.DataObject) -> None:
    predecessors = data.draw(strategies.dags())
    asked = data.draw(st.integers(1, 3))
    supported = [data.draw(strategies.masks(len(predecessors), 50)) for _ in range(asked)]
    border = Border(
        constant=[False] * len(predecessors),
        exposed=[True] * len(predecessors),
    )
    graph, reasons = assign(predecessors, supported, border)
    check_quotient(graph, predecessors)
    check_convex(graph, predecessors)
    assert reasons == [{}] * asked
    owner = {node: graph.owner[index] for node, index in owner_of(graph).items()}
    for node in range(len(predecessors)):
        first = next((ep for ep in range(asked) if supported[ep][node]), None)
        assert owner.get(node) == first
    for ep in range(asked):
        own = [index for index, found in enumerate(graph.owner) if found == ep]
        assert all(joined_makes_cycle(graph, a, b) for a, b in combinations(own, 2))


@given(st.data())
def test_every_rule_at_once(data: st.DataObject) -> None:
    predecessors = data.draw(strategies.dags())
    border = data.draw(strategies.borders(predecessors))
    asked = data.draw(st.integers(1, 2))
    supported = [data.draw(strategies.masks(len(predecessors))) for _ in range(asked)]
    least = data.draw(st.integers(1, 3))
    most = data.draw(st.none() | st.integers(0, 3))
    graph, reasons = assign(predecessors, supported, border, min_nodes=least, max_partitions=most)
    check_quotient(graph, predecessors)
    check_convex(graph, predecessors)
    where = owner_of(graph)
    partitions = list(graph.partitions())
    assert most is None or len(partitions) <= most
    for ep, members in partitions:
        assert len(members) >= least
        assert all(supported[ep][node] for node in members)
        inside = set(members)
        assert any(border.exposed[node] for node in members) or any(
            need in inside and node not in inside
            for node, needs in enumerate(predecessors)
            for need in needs
        ), "a partition without an output"
    for bond in border.must_stay_together:
        check_bond(bond, where)
    for node in range(len(predecessors)):
        for ep in range(asked):
            taken_before = node in where and graph.owner[where[node]] <= ep
            if supported[ep][node] and not taken_before:
                assert reasons[ep][node], "a supported node that nobody took has a reason"
            assert not (node in where and graph.owner[where[node]] == ep and node in reasons[ep])


def check_bond(bond: Bond, where: dict[int, int]) -> None:
    inside = where.get(bond.producer)
    users = [where.get(node) for node in bond.consumers]
    if inside is not None:
        assert not bond.exposed
        assert all(user == inside for user in users), "a value that may not leaves its partition"
    elif not bond.one_way:
        assert all(user is None for user in users), "a value that may not enters a partition"


@given(st.data())
def test_a_constant_stays_with_the_first_partition_that_uses_it(data: st.DataObject) -> None:
    predecessors = data.draw(strategies.dags())
    border = data.draw(strategies.borders(predecessors, bonded=False))
    supported = data.draw(strategies.masks(len(predecessors)))
    graph, reasons = assign(predecessors, [supported], border)
    where = owner_of(graph)
    for node, index in where.items():
        users = {where.get(other) for other, needs in enumerate(predecessors) if node in needs} - {
            None
        }
        if border.constant[node] and not border.exposed[node]:
            assert users, "a constant is in a partition though no partition uses it"
        if (
            border.constant[node]
            and users
            and all(other in where for other, needs in enumerate(predecessors) if node in needs)
        ):
            assert index in users, "a constant crosses a border that it need not cross"
    count = len([1 for _ in graph.partitions()])
    left = [own and node not in reasons[0] for node, own in enumerate(supported)]
    assert count == longest_alternation(predecessors, left)


@given(st.data())
def test_levels_never_fall_along_an_edge(data: st.DataObject) -> None:
    predecessors = data.draw(strategies.dags())
    supported = data.draw(strategies.masks(len(predecessors)))
    level = levels(predecessors, supported)
    for node, needs in enumerate(predecessors):
        for need in needs:
            assert level[need] + (supported[node] and not supported[need]) <= level[node]
