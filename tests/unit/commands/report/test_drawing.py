from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epctx.commands.report import graphs
from epctx.commands.report.graphs import Level
from epctx.graph.model import Decline, Outline
from epctx.stages.report import ModelReport
from tests.kit.reports import chain


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
