"""The partitioner on graphs that a reader can draw."""

from __future__ import annotations

from collections.abc import Sequence

from epctx.graph.partition.assign import Bond, Border, Quotient, assign, levels, segments

DIAMOND = [[], [0], [0], [1, 2]]
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


def test_a_cut_chain_has_a_partition_on_each_side() -> None:
    assert levels(CHAIN, on(5, 0, 1, 3, 4)) == [0, 0, 0, 1, 1]
    graph = segments(CHAIN, on(5, 0, 1, 3, 4))
    assert taken(graph) == [(0, [0, 1]), (0, [3, 4])]
    assert [list(members) for members in graph.members] == [[0, 1], [2], [3, 4]]
    assert [list(needs) for needs in graph.predecessors] == [[], [0], [1]]


def test_a_diamond_round_an_unsupported_node_is_not_joined_across_it() -> None:
    assert taken(segments(DIAMOND, on(4, 0, 2, 3))) == [(0, [0, 2]), (0, [3])]


def test_nodes_that_do_not_touch_are_one_partition() -> None:
    assert taken(segments([[], [], []], on(3, 0, 1, 2))) == [(0, [0, 1, 2])]


def test_two_chains_that_cross_never_make_a_cycle_together() -> None:
    # a0 -> x -> b1 and b0 -> y -> a1: {a0, a1} and {b0, b1} would each be convex, not both
    graph = segments([[], [], [0], [1], [2], [3]], on(6, 0, 1, 4, 5))
    assert taken(graph) == [(0, [0, 1]), (0, [4, 5])]


def test_the_second_ep_sees_the_first_ones_partitions_as_one_node_each() -> None:
    supported = [on(4, 0, 2), on(4, 1, 3)]
    graph, _ = assign([[], [0], [], [2, 1]], supported, border(4))
    assert taken(graph) == [(0, [0, 2]), (1, [1, 3])]
    graph, reasons = assign([[], [0], [1], [2]], supported, border(4))
    assert taken(graph) == [(0, [0]), (1, [1]), (0, [2]), (1, [3])]
    assert reasons == [{}, {}]


def test_the_first_ep_that_supports_a_node_gets_it() -> None:
    graph, _ = assign(CHAIN, [on(5, 1, 2), on(5, 0, 1, 2, 3, 4)], border(5))
    assert taken(graph) == [(1, [0]), (0, [1, 2]), (1, [3, 4])]


def test_a_small_partition_is_left_to_the_next_ep() -> None:
    graph, reasons = assign(CHAIN, [on(5, 0, 2, 3), on(5, 0, 1)], border(5), min_nodes=2)
    assert taken(graph) == [(1, [0, 1]), (0, [2, 3])]
    assert reasons == [{0: "partition of 1 smaller than min_nodes 2"}, {}]


def test_max_partitions_keeps_the_largest() -> None:
    graph, reasons = assign(CHAIN, [on(5, 0, 2, 3)], border(5), max_partitions=1)
    assert taken(graph) == [(0, [2, 3])]
    assert reasons == [{0: "partition of 1 beyond the 1 of max_partitions"}]


def test_max_partitions_counts_those_that_the_graph_has_already() -> None:
    graph, reasons = assign(CHAIN, [on(5, 0, 2, 3)], border(5), max_partitions=3, before=2)
    assert taken(graph) == [(0, [2, 3])]
    assert reasons == [{0: "partition of 1 beyond the 3 of max_partitions"}]
    graph, _ = assign(CHAIN, [on(5, 0, 2, 3)], border(5), max_partitions=3, before=4)
    assert taken(graph) == []


def test_max_partitions_counts_all_eps_and_prefers_the_first_at_equal_size() -> None:
    supported = [on(5, 0, 4), on(5, 2, 4)]
    graph, reasons = assign(CHAIN, supported, border(5), max_partitions=2)
    assert taken(graph) == [(0, [0]), (0, [4])]
    assert reasons == [{}, {2: "partition of 1 beyond the 2 of max_partitions"}]
    graph, reasons = assign(CHAIN, supported, border(5), max_partitions=1)
    assert taken(graph) == [(0, [0])]
    assert reasons == [
        {4: "partition of 1 beyond the 1 of max_partitions"},
        dict.fromkeys((2, 4), "partition of 1 beyond the 1 of max_partitions"),
    ]


def test_what_is_beyond_max_partitions_goes_to_the_next_ep() -> None:
    graph, _ = assign(CHAIN, [on(5, 2), on(5, 0, 1, 2, 3, 4)], border(5))
    assert taken(graph) == [(1, [0, 1]), (0, [2]), (1, [3, 4])]
    graph, _ = assign(CHAIN, [on(5, 2), on(5, 0, 1, 2, 3, 4)], border(5), max_partitions=2)
    assert taken(graph) == [(1, [0, 1, 2, 3, 4])]


def test_a_constant_goes_to_the_first_partition_that_uses_it() -> None:
    # 0 is a constant for node 3 alone, which is beyond the unsupported 2
    graph = assign([[], [], [1], [0, 2]], [on(4, 0, 1, 3)], border(4, constant=[0]))[0]
    assert taken(graph) == [(0, [1]), (0, [0, 3])]


def test_a_constant_of_several_partitions_is_made_in_the_first() -> None:
    # 0 is a constant for 4 in the first partition and for 3 in the second, which comes before it
    predecessors: list[list[int]] = [[], [], [1], [0, 2], [0, 1], [3, 4]]
    graph = assign(predecessors, [on(6, 0, 1, 3, 4, 5)], border(6, constant=[0]))[0]
    assert taken(graph) == [(0, [0, 1, 4]), (0, [3, 5])]


def test_a_constant_for_others_alone_is_left_to_them() -> None:
    graph, reasons = assign([[], [0], [1]], [on(3, 0, 2)], border(3, constant=[0]))
    assert taken(graph) == [(0, [2])]
    assert reasons == [{0: "needs no input of the model, and no node of this EP uses it"}]


def test_what_no_output_depends_on_is_left_alone() -> None:
    graph, reasons = assign([[], [0], [0]], [on(3, 0, 1, 2)], border(3))
    assert taken(graph) == [(0, [0, 2])]
    assert reasons == [{1: "no output of the model depends on it"}]


def test_a_bonded_value_may_be_inside() -> None:
    bond = Bond(producer=0, consumers=(1,), reason="string")
    graph, reasons = assign([[], [0], [1]], [on(3, 0, 1)], border(3, bond))
    assert taken(graph) == [(0, [0, 1])]
    assert reasons == [{}]


def test_a_bonded_value_does_not_cross() -> None:
    bond = Bond(producer=1, consumers=(2,), reason="string")
    graph, reasons = assign(CHAIN, [on(5, 0, 1, 3, 4)], border(5, bond))
    assert taken(graph) == [(0, [0]), (0, [3, 4])]
    assert reasons == [{1: "string"}]
    graph, reasons = assign(CHAIN, [on(5, 2, 3, 4)], border(5, bond))
    assert taken(graph) == [(0, [3, 4])]
    assert reasons == [{2: "string"}]


def test_bonds_are_settled_to_the_end() -> None:
    bonds = [Bond(producer=node, consumers=(node + 1,), reason="string") for node in range(3)]
    for order in (bonds, bonds[::-1]):
        graph, reasons = assign(CHAIN, [on(5, 0, 1, 2, 4)], border(5, *order))
        assert taken(graph) == [(0, [4])]
        assert reasons == [{0: "string", 1: "string", 2: "string"}]


def test_a_constant_for_others_does_not_leave_with_a_bonded_value() -> None:
    # 1 is made of the constant 0, for the foreign 3 alone; 0 may not leave the partition to it
    predecessors: list[list[int]] = [[], [0], [0], [1], [2, 3]]
    bond = Bond(producer=0, consumers=(1, 2), reason="sequence")
    graph, reasons = assign(predecessors, [on(5, 0, 1, 2, 4)], border(5, bond, constant=[0, 1]))
    assert taken(graph) == [(0, [4])]
    assert reasons[0][0] == reasons[0][2] == "sequence"


def test_a_one_way_value_may_enter() -> None:
    bond = Bond(producer=1, consumers=(2,), one_way=True, reason="rank")
    graph, reasons = assign(CHAIN, [on(5, 0, 2)], border(5, bond))
    assert taken(graph) == [(0, [0]), (0, [2])]
    graph, reasons = assign(CHAIN, [on(5, 0, 1)], border(5, bond))
    assert taken(graph) == [(0, [0])]
    assert reasons == [{1: "rank"}]


def test_a_bonded_output_of_the_model_cannot_be_inside() -> None:
    bond = Bond(producer=4, consumers=(), exposed=True, reason="string")
    graph, reasons = assign(CHAIN, [on(5, 3, 4)], border(5, bond))
    assert taken(graph) == [(0, [3])]
    assert reasons == [{4: "string"}]


def test_bonded_nodes_wait_for_each_other() -> None:
    # 0 -> 3 is bonded; 3 also needs the unsupported 1's 2, so all of it is on level 1
    predecessors = [[], [], [1], [0, 2]]
    bond = Bond(producer=0, consumers=(3,), reason="sequence")
    graph, reasons = assign(predecessors, [on(4, 0, 2, 3)], border(4, bond))
    assert taken(graph) == [(0, [0, 2, 3])]
    assert reasons == [{}]


def test_bonded_nodes_that_a_foreign_node_stands_between_are_dropped() -> None:
    bond = Bond(producer=0, consumers=(2,), reason="sequence")
    predecessors = [[], [0], [0, 1], [2]]
    graph, reasons = assign(predecessors, [on(4, 0, 2, 3)], border(4, bond))
    assert taken(graph) == [(0, [3])]
    assert reasons == [dict.fromkeys((0, 2), "sequence, and a node outside stands in between")]


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


def test_nothing_at_all() -> None:
    assert taken(segments([], [])) == []
    assert taken(assign([], [[]], border(0))[0]) == []
    assert taken(assign(CHAIN, [], border(5))[0]) == []
