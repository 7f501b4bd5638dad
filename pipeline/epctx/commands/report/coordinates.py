"""Where in its layer each node of a drawing is, and how its edges run: near linear in size.

The method is that of Sugiyama: short edges pass through each layer between their ends, so that they
bend around nodes; layers are ordered by the mean place of their neighbours; then nodes move towards
their neighbours as far as the others let them. Edges that are long, or end in another column, run
in the gutter beside their column.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from epctx.commands.report import layering
from epctx.commands.report.layering import Graph

LONGEST: Final = 12
"""Layers that an edge may run through; a longer one goes by the gutter."""
SWEEPS: Final = 4
"""Times that layers are ordered, down and up in turn."""
THIN: Final = 0.25
"""Width of an edge that passes through a layer, in nodes."""
LANES: Final = 6
"""Edges that run side by side in a gutter; those from one node share a lane."""


class Size(Struct, frozen=True, kw_only=True):
    """Of a node, and the spaces between nodes, layers and columns, in pixels."""

    width: int
    height: int
    across: int
    down: int
    gutter: int


class Layout(Struct, frozen=True, kw_only=True):
    """A drawing.

    Attributes:
        places: x and y of each node's centre.
        edges: from node, to node, then x and y of each bend between them.
        width: of all of it.
        height: likewise.
    """

    places: tuple[tuple[int, int], ...]
    edges: tuple[tuple[int, ...], ...]
    width: int
    height: int


def place(predecessors: Graph, size: Size) -> Layout:
    """Lay a graph out. Takes a second or two for 10,000 nodes."""
    return _Placing(layering.acyclic(predecessors), predecessors, size).layout()


class _Placing:
    """Nodes and, after them, the points where edges pass through a layer: `slots`."""

    def __init__(self, graph: Graph, all_edges: Graph, size: Size) -> None:
        self._size = size
        self._nodes = len(graph)
        self._layer = layering.layers(graph)
        pitch = (size.width + size.across, size.height + size.down)
        self._column = layering.columns(self._layer, graph, pitch, size.gutter)
        self._slot_layer = list(self._layer)
        self._up: list[list[int]] = [[] for _ in graph]
        self._down: list[list[int]] = [[] for _ in graph]
        self._through: dict[tuple[int, int], range] = {}
        self._far: list[tuple[int, int]] = []
        for node, before in enumerate(all_edges):
            for other in before:
                self._edge(other, node)
        self._rows: list[list[int]] = [[] for _ in self._column]
        for slot, layer in enumerate(self._slot_layer):
            self._rows[layer].append(slot)

    def _edge(self, start: int, end: int) -> None:
        first, last = self._layer[start], self._layer[end]
        near = first < last <= first + LONGEST and self._column[first] == self._column[last]
        if not near:
            self._far.append((start, end))
            return
        passing = range(len(self._slot_layer), len(self._slot_layer) + last - first - 1)
        self._through[start, end] = passing
        chain = [start, *passing, end]
        for slot in passing:
            self._slot_layer.append(first + 1 + slot - passing.start)
            self._up.append([])
            self._down.append([])
        for above, below in itertools.pairwise(chain):
            self._down[above].append(below)
            self._up[below].append(above)

    def layout(self) -> Layout:
        """Order, place, route."""
        self._order()
        across = self._across()
        shifts, ends, width = self._columns(across)
        tops, height = self._tops()
        x = [round(across[s] + shifts[self._column[la]]) for s, la in enumerate(self._slot_layer)]
        y = [tops[layer] for layer in self._slot_layer]
        edges = [
            (start, end, *(p for slot in passing for p in (x[slot], y[slot])))
            for (start, end), passing in self._through.items()
        ]
        edges += [(a, b, *self._detour(a, b, x, y, ends)) for a, b in self._far]
        places = tuple(zip(x[: self._nodes], y[: self._nodes], strict=True))
        return Layout(places=places, edges=tuple(edges), width=width, height=height)

    def _order(self) -> None:
        place = [0.0] * len(self._slot_layer)

        def number(row: Sequence[int]) -> None:
            for index, slot in enumerate(row):
                place[slot] = index - (len(row) - 1) / 2

        for row in self._rows:
            number(row)
        for sweep in range(SWEEPS):
            beside, rows = (self._down, self._rows[::-1]) if sweep % 2 else (self._up, self._rows)
            for row in rows:
                mean = {s: _mean(place, beside[s], place[s]) for s in row}
                row.sort(key=mean.__getitem__)
                number(row)

    def _across(self) -> list[float]:
        """The x of each slot, its column's middle at 0."""
        pitch = self._size.width + self._size.across
        wide = [float(pitch)] * self._nodes
        wide += [pitch * THIN] * (len(self._slot_layer) - self._nodes)
        x = [0.0] * len(self._slot_layer)
        for row in self._rows:
            _apart(row, [0.0] * len(row), wide, x)
        for sweep in range(SWEEPS):
            rows = self._rows[::-1] if sweep % 2 else self._rows
            for row in rows:
                both = sweep >= SWEEPS - 2
                wanted = []
                for slot in row:
                    near = self._down[slot] if sweep % 2 else self._up[slot]
                    near = self._up[slot] + self._down[slot] if both else near
                    wanted.append(_mean(x, near, x[slot]))
                _apart(row, wanted, wide, x)
        return x

    def _columns(self, across: Sequence[float]) -> tuple[list[float], list[float], int]:
        """What to add to the x of each column, where its right side is then, and the width."""
        half = self._size.width / 2
        count = max(self._column, default=0) + 1
        least, most = [0.0] * count, [0.0] * count
        for slot, layer in enumerate(self._slot_layer):
            column = self._column[layer]
            least[column] = min(least[column], across[slot] - half)
            most[column] = max(most[column], across[slot] + half)
        shifts, ends, edge = [], [], float(self._size.gutter)
        for low, high in zip(least, most, strict=True):
            shifts.append(edge - low)
            ends.append(edge + high - low)
            edge = ends[-1] + self._size.gutter
        return shifts, ends, round(edge)

    def _tops(self) -> tuple[list[int], int]:
        """The y of each layer's middle, and the height of all."""
        pitch = self._size.height + self._size.down
        tops: list[int] = []
        for layer, column in enumerate(self._column):
            first = layer == 0 or self._column[layer - 1] != column
            tops.append(pitch if first else tops[-1] + pitch)
        return tops, max(tops, default=0) + pitch

    def _detour(
        self, start: int, end: int, x: list[int], y: list[int], ends: list[float]
    ) -> Iterable[int]:
        """By the gutter right of the start's column, over the columns between, to the end."""
        size = self._size
        lane = (start % LANES + 1) * size.gutter // (LANES + 2)
        out, into = y[start] + size.height // 2 + 6, y[end] - size.height // 2 - 8
        first = self._column[self._layer[start]]
        last = self._column[self._layer[end]]
        right = round(ends[first]) + lane
        yield from (x[start], out, right, out)
        if last in (first, first + 1):
            yield from (right, into)
        else:
            left = round(ends[last - 1]) + lane if last else size.gutter - lane
            top = (start % LANES + 1) * size.down // (LANES + 2)
            yield from (right, top, left, top, left, into)
        yield from (x[end], into)


def _mean(place: Sequence[float], slots: Sequence[int], otherwise: float) -> float:
    return sum(place[slot] for slot in slots) / len(slots) if slots else otherwise


def _apart(
    row: Sequence[int], wanted: Sequence[float], wide: Sequence[float], x: list[float]
) -> None:
    """Place a row in its order as near as can be to where its slots want to be (least squares).

    Pool adjacent violators: slots that want to be in each other's place move as one block.
    """
    blocks: list[tuple[float, int]] = []  # mean of what its slots want of its start, and how many
    offsets, edge = [], 0.0
    for slot, want in zip(row, wanted, strict=True):
        offsets.append(edge + wide[slot] / 2)
        blocks.append((want - offsets[-1], 1))
        edge += wide[slot]
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (mean, count), (before, more) = blocks.pop(), blocks.pop()
            blocks.append(((mean * count + before * more) / (count + more), count + more))
    index = 0
    for mean, count in blocks:
        for _ in range(count):
            x[row[index]] = mean + offsets[index]
            index += 1
