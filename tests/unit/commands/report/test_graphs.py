"""Drawings of graphs."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epctx.commands.report import graphs
from epctx.commands.report import graphs as coordinates
from epctx.commands.report.graphs import Layout, Level, Size
from epctx.graph.model import Decline, Outline
from epctx.stages.report import ModelReport
from tests.kit.reports import chain

SIZE = Size(width=100, height=30, across=20, down=20, gutter=60)


@st.composite
def random_graphs(draw: st.DrawFn) -> list[list[int]]:
    count = draw(st.integers(0, 80))
    needs = st.integers(0, count)
    return [
        sorted({before % node for before in draw(st.lists(needs, max_size=3))}) if node else []
        for node in range(count)
    ]


def long_chain(count: int, skip: int = 0) -> list[list[int]]:
    return [
        sorted({node - 1, node - skip} if skip and node >= skip else {node - 1}) if node else []
        for node in range(count)
    ]


def assert_apart(layout: Layout) -> None:
    """No two boxes overlap, and none leaves the drawing."""
    rows: dict[int, list[int]] = {}
    for x, y in layout.places:
        assert SIZE.width / 2 <= x <= layout.width - SIZE.width / 2
        assert SIZE.height / 2 <= y <= layout.height - SIZE.height / 2
        rows.setdefault(y, []).append(x)
    for row in rows.values():
        row.sort()
        assert all(b - a >= SIZE.width for a, b in itertools.pairwise(row))
    assert all(b - a >= SIZE.height for a, b in itertools.pairwise(sorted(rows)))


@given(random_graphs())
def test_every_node_comes_after_what_it_needs_and_nothing_overlaps(graph: list[list[int]]) -> None:
    found = coordinates.layers(graph)
    assert all(found[other] < found[node] for node, before in enumerate(graph) for other in before)
    layout = coordinates.lay_out(graph, SIZE)
    assert_apart(layout)
    drawn = sorted((start, end) for start, end, *_ in layout.edges)
    assert drawn == sorted((other, node) for node, before in enumerate(graph) for other in before)


def test_an_edge_over_columns_runs_in_gutters_and_never_through_a_box() -> None:
    graph = long_chain(300)
    graph[250] = [3, 249]
    layout = coordinates.lay_out(graph, SIZE)
    (edge,) = (e for e in layout.edges if e[:2] == (3, 250))
    points = [layout.places[3], *zip(edge[2::2], edge[3::2], strict=True), layout.places[250]]
    inner = points[1:-1]
    for (ax, ay), (bx, by) in itertools.pairwise(inner):
        assert ax == bx or ay == by
        for node, (x, y) in enumerate(layout.places):
            if node in (3, 250):
                continue
            apart_x = max(ax, bx) <= x - SIZE.width / 2 or min(ax, bx) >= x + SIZE.width / 2
            apart_y = max(ay, by) <= y - SIZE.height / 2 or min(ay, by) >= y + SIZE.height / 2
            assert apart_x or apart_y, (node, (ax, ay), (bx, by))


def test_parts_that_seem_to_need_each_other_are_drawn_all_the_same() -> None:
    layout = coordinates.lay_out([[1], [0], [1]], SIZE)
    assert_apart(layout)
    assert {e[:2] for e in layout.edges} == {(1, 0), (0, 1), (1, 2)}


def texts(level: Level, places: tuple[int, ...]) -> list[str]:
    return ["" if place < 0 else level.words[place] for place in places]


def outlined(owners: tuple[int, ...], predecessors: tuple[tuple[int, ...], ...]) -> ModelReport:
    count = len(owners)
    made = chain(count)
    assert made.outline is not None
    return replace(
        made,
        partitions=tuple(made.partitions[0] for _ in range(max(owners) + 1)),
        outline=replace(made.outline, owners=owners, predecessors=predecessors),
        declined=tuple(
            Decline(
                node=f"node {n}", op_type="TopK", domain="", reasons=(("npu", f"reason {n % 2}"),)
            )
            for n in range(count)
            if owners[n] < 0
        ),
    )


def test_a_partition_that_its_ep_left_in_the_middle_is_drawn_in_its_pieces() -> None:
    # 0 -> 1 -> 2 (left) -> 3 -> 4 (left) -> 5, and 1 -> 3 beside it.
    needs = ((), (0,), (1,), (1, 2), (3,), (4,))
    drawn = graphs.draw(outlined((0, 0, -1, 0, -1, 0), needs), ["npu"])
    assert drawn is not None
    assert drawn.nodes.units == (0, 0, 1, 2, 3, 4)
    assert texts(drawn.units, drawn.units.titles) == [
        "Partition 1 (1/3): 2 nodes",
        "Relu",
        "Partition 1 (2/3): 1 node",
        "Relu",
        "Partition 1 (3/3): 1 node",
    ]
    assert {edge[:2] for edge in drawn.units.edges} == {(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)}


@given(st.data())
def test_units_of_any_partitions_need_no_unit_that_needs_them(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 30))
    owners = tuple(data.draw(st.lists(st.sampled_from([-1, 0]), min_size=count, max_size=count)))
    needs = tuple(
        tuple(sorted({data.draw(st.integers(0, node - 1)) for _ in range(2)})) if node else ()
        for node in range(count)
    )
    model = outlined(owners, needs) if max(owners) >= 0 else None
    drawn = graphs.draw(model, ["npu"]) if model is not None else None
    if drawn is not None:
        edges = {edge[:2] for edge in drawn.units.edges}
        assert not any((b, a) in edges for a, b in edges)


def test_a_model_without_an_outline_has_no_drawing() -> None:
    assert graphs.draw(replace(chain(4), outline=None), ["npu"]) is None
    empty = Outline(names=(), op_types=(), ops=(), owners=(), predecessors=())
    assert graphs.draw(replace(chain(4), outline=empty), ["npu"]) is None
