"""The partitioner on graphs that a reader can draw."""

from __future__ import annotations

from collections.abc import Sequence

from epctx.graph.partition.assign import Bond, Border, Quotient, assign

CHAIN = [[], [0], [1], [2], [3]]


def border(count: int, *bonds: Bond, constant: Sequence[int] = ()) -> Border:
    """Nothing constant but `constant`; the last node makes the model's output."""
    return Border(
        constant=[node in constant for node in range(count)],
        exposed=[node == count - 1 for node in range(count)],
        must_stay_together=bonds,
    )


def taken(graph: Quotient) -> list[tuple[int, list[int]]]:
    return [(owner, list(nodes)) for owner, nodes in graph.partitions()]


def on(count: int, *nodes: int) -> list[bool]:
    return [node in nodes for node in range(count)]


def test_max_partitions_counts_those_that_the_graph_has_already() -> None:
    graph, reasons = assign(CHAIN, [on(5, 0, 2, 3)], border(5), max_partitions=3, before=2)
    assert taken(graph) == [(0, [2, 3])]
    assert reasons == [{0: "partition of size 1 is beyond max_partitions 3"}]
    graph, _ = assign(CHAIN, [on(5, 0, 2, 3)], border(5), max_partitions=3, before=4)
    assert taken(graph) == []


def test_max_partitions_counts_all_eps_and_prefers_the_first_at_equal_size() -> None:
    supported = [on(5, 0, 4), on(5, 2, 4)]
    graph, reasons = assign(CHAIN, supported, border(5), max_partitions=2)
    assert taken(graph) == [(0, [0]), (0, [4])]
    assert reasons == [{}, {2: "partition of size 1 is beyond max_partitions 2"}]
    graph, reasons = assign(CHAIN, supported, border(5), max_partitions=1)
    assert taken(graph) == [(0, [0])]
    assert reasons == [
        {4: "partition of size 1 is beyond max_partitions 1"},
        dict.fromkeys((2, 4), "partition of size 1 is beyond max_partitions 1"),
    ]


def test_supported_nodes_between_bonded_ones_join_them() -> None:
    # 0 and 4 are bonded; of the paths between them, one runs through 1, 2 and 3
    bond = Bond(producer=0, consumers=(4,), reason="sequence")
    predecessors = [[], [0], [1], [2], [0, 3]]
    graph, _ = assign(predecessors, [on(5, 0, 1, 2, 3, 4)], border(5, bond))
    assert taken(graph) == [(0, [0, 1, 2, 3, 4])]


def test_of_two_ties_in_each_others_way_one_stays() -> None:
    # a: 0 -> 5, b: 1 -> 4; the paths 0 -> 2 -> 4 and 1 -> 3 -> 5 run through foreign 2 and 3
    predecessors: list[list[int]] = [[], [], [0], [1], [1, 2], [0, 3], [4, 5]]
    bonds = [
        Bond(producer=0, consumers=(5,), reason="sequence"),
        Bond(producer=1, consumers=(4,), reason="sequence"),
    ]
    graph, reasons = assign(predecessors, [on(7, 0, 1, 4, 5)], border(7, *bonds))
    groups = {tuple(nodes) for _, nodes in taken(graph)}
    assert groups in ({(0, 5)}, {(1, 4)})
    assert len(reasons[0]) == 2
