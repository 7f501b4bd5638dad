"""Every hypothesis strategy of the tests, in one place."""

from __future__ import annotations

from hypothesis import strategies as st

from epctx.graph.bonds import Bond
from epctx.graph.partitioning import Border

# --- graphs of integers (graph/partitioning) ---


@st.composite
def dags(draw: st.DrawFn, max_nodes: int = 16) -> list[list[int]]:
    """A directed acyclic graph: for each node its predecessors, all of them less than it."""
    count = draw(st.integers(0, max_nodes))
    return [
        sorted(draw(st.sets(st.integers(0, node - 1), max_size=3))) if node else []
        for node in range(count)
    ]


@st.composite
def masks(draw: st.DrawFn, count: int, chance: int = 70) -> list[bool]:
    """A flag for each node, true for about `chance` in a hundred."""
    return [draw(st.integers(0, 99)) < chance for _ in range(count)]


@st.composite
def bonds(draw: st.DrawFn, predecessors: list[list[int]]) -> list[Bond]:
    """Some values of the graph that may not cross: a node's whole output, or a model's input."""
    consumers: dict[int, list[int]] = {}
    for node, needs in enumerate(predecessors):
        for need in needs:
            consumers.setdefault(need, []).append(node)
    found = []
    for node in range(len(predecessors)):
        if draw(st.integers(0, 99)) < 20:
            found.append(
                Bond(
                    producer=node,
                    consumers=tuple(consumers.get(node, ())),
                    exposed=draw(st.integers(0, 9)) == 0,
                    one_way=draw(st.booleans()),
                    reason=f"bond of {node}",
                )
            )
    if predecessors and draw(st.integers(0, 9)) == 0:
        users = draw(st.sets(st.integers(0, len(predecessors) - 1), min_size=1, max_size=2))
        found.append(Bond(producer=-1, consumers=tuple(sorted(users)), reason="bond of an input"))
    return found


@st.composite
def borders(
    draw: st.DrawFn, predecessors: list[list[int]], *, constants: bool = True, bonded: bool = True
) -> Border:
    """A border for the graph. A node that nothing uses is not always an output of the model."""
    constant: list[bool] = []
    for needs in predecessors:
        known = all(constant[need] for need in needs)
        constant.append(constants and known and draw(st.integers(0, 99)) < 40)
    used = {need for needs in predecessors for need in needs}
    exposed = [
        draw(st.integers(0, 99)) < (10 if node in used else 90) for node in range(len(predecessors))
    ]
    return Border(
        constant=constant,
        exposed=exposed,
        bonds=draw(bonds(predecessors)) if bonded else (),
    )
