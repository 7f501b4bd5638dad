"""Draw a model's graph: layers, coordinates, edges, boxes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from epctx.graph.model import Decline, Outline
from epctx.stages.report import ModelReport

Graph = Sequence[Sequence[int]]
"""Predecessors of each node; nodes are in topological order except for cycles."""

LEAST_COLUMN: Final = 6
"""Fewest layers of a column; a graph that is slightly longer stays in one column."""
ASPECT: Final = 1.75
"""Target ratio of the drawing's width to its height: that of the page's frame on a desktop."""
SLACK: Final = 0.2
"""Share of a column's layers by which its end may move to cross fewer edges."""


def successors(predecessors: Graph) -> list[list[int]]:
    """Nodes that use each node, ascending."""
    users: list[list[int]] = [[] for _ in predecessors]
    for node, before in enumerate(predecessors):
        for other in before:
            users[other].append(node)
    return users


def in_order(predecessors: Graph, after: Graph) -> list[int]:
    """Nodes in topological order, without nodes in or behind a cycle.

    Args:
        after: result of `successors`.
    """
    waiting = [len(before) for before in predecessors]
    order = [node for node, count in enumerate(waiting) if not count]
    for node in order:
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
    return order


def acyclic(predecessors: Graph) -> list[list[int]]:
    """Graph without the edges that close a cycle.

    Partitions that an EP split into several pieces may appear to depend on each other.
    """
    after = successors(predecessors)
    waiting = [len(before) for before in predecessors]
    placed = [False] * len(predecessors)
    edges: list[list[int]] = [[] for _ in predecessors]
    ready = [node for node, count in enumerate(waiting) if not count]
    ready.reverse()
    stuck = iter(range(len(predecessors)))
    for _ in predecessors:
        node = ready.pop() if ready else next(n for n in stuck if not placed[n])
        placed[node] = True
        edges[node] = [other for other in predecessors[node] if placed[other] and other != node]
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other] and not placed[other]:
                ready.append(other)
    return edges


def layers(predecessors: Graph) -> list[int]:
    """Layer of each node, from 0: after all of its inputs, and close to them.

    The longest path gives the layer. A node without inputs, or with fewer nodes before than after
    it, such as a weight's dequantization, then moves down to its users.
    """
    after = successors(predecessors)
    order = in_order(predecessors, after)
    layer = [0] * len(predecessors)
    for node in order:
        layer[node] = max((layer[other] + 1 for other in predecessors[node]), default=0)
    for node in reversed(order):
        if after[node] and len(predecessors[node]) < len(after[node]):
            layer[node] = max(layer[node], min(layer[other] for other in after[node]) - 1)
        elif after[node] and not predecessors[node]:
            layer[node] = min(layer[other] for other in after[node]) - 1
    return layer


def columns(
    layer: Sequence[int], predecessors: Graph, pitch: tuple[float, float], gutter: float
) -> list[int]:
    """Column of each layer, from 0.

    Args:
        layer: layer of each node.
        pitch: width and height of a node with its spacing.
        gutter: space between two columns.
    """
    height = max(layer, default=-1) + 1
    widths = [0] * height
    for each in layer:
        widths[each] += 1
    mean = sum(widths) / height if height else 1.0
    ideal = math.sqrt(height * (mean * pitch[0] + gutter) / (ASPECT * pitch[1]))
    length = max(LEAST_COLUMN, math.ceil(ideal))
    if height <= length * (1 + SLACK):
        return [0] * height
    length = math.ceil(height / math.ceil(height / length))
    crossing = _crossing(layer, predecessors, height)
    assigned: list[int] = []
    column = 0
    while len(assigned) < height:
        end = len(assigned) + length
        slack = int(length * SLACK)
        if end + slack < height:
            near = range(end - slack, end + slack + 1)
            end = min(near, key=lambda cut: (crossing[cut], abs(cut - end)))
        else:
            end = height
        assigned.extend([column] * (end - len(assigned)))
        column += 1
    return assigned


def _crossing(layer: Sequence[int], predecessors: Graph, height: int) -> list[int]:
    """Count, for each layer, the edges that enter it from above or pass through it."""
    changes = [0] * (height + 1)
    for node, before in enumerate(predecessors):
        for other in before:
            changes[layer[other] + 1] += 1
            changes[layer[node] + 1] -= 1
    crossings, count = [], 0
    for change in changes:
        count += change
        crossings.append(count)
    return crossings


LONGEST: Final = 12
"""Most layers that an edge may pass through; a longer edge runs in the gutter."""
SWEEPS: Final = 4
"""Number of passes that order the layers, alternately down and up."""
THIN: Final = 0.25
"""Width of an edge that passes through a layer, as a share of a node's width."""
LANES: Final = 6
"""Number of lanes for edges in a gutter; edges from one node share a lane."""


class Size(Struct, frozen=True, kw_only=True):
    """Size of a node and of the gaps between nodes, layers and columns, in pixels."""

    width: int
    height: int
    across: int
    down: int
    gutter: int


class Layout(Struct, frozen=True, kw_only=True):
    """Layout of a graph.

    Attributes:
        places: x and y of each node's centre.
        edges: from node, to node, then x and y of each bend between them.
        width: width of the whole drawing.
        height: height of the whole drawing.
    """

    places: tuple[tuple[int, int], ...]
    edges: tuple[tuple[int, ...], ...]
    width: int
    height: int


def lay_out(predecessors: Graph, size: Size) -> Layout:
    """Lay out a graph. Takes a second or two for 10,000 nodes."""
    return _Placing(acyclic(predecessors), predecessors, size).layout()


class _Placing:
    """Positions of slots: the nodes, then the points where edges pass through a layer."""

    def __init__(self, graph: Graph, all_edges: Graph, size: Size) -> None:
        self._size = size
        self._nodes = len(graph)
        self._layer = layers(graph)
        pitch = (size.width + size.across, size.height + size.down)
        self._column = columns(self._layer, graph, pitch, size.gutter)
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
        """Order the slots, place them, and route the edges."""
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
        """Horizontal position of each slot, relative to the middle of its column."""
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
        """Return the horizontal shift and right edge of each column, and the total width."""
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
        """Vertical position of each layer's middle, and the total height."""
        pitch = self._size.height + self._size.down
        tops: list[int] = []
        for layer, column in enumerate(self._column):
            first = layer == 0 or self._column[layer - 1] != column
            tops.append(pitch if first else tops[-1] + pitch)
        return tops, max(tops, default=0) + pitch

    def _detour(
        self, start: int, end: int, x: list[int], y: list[int], ends: list[float]
    ) -> Iterable[int]:
        """Route an edge through the gutter right of its start, and above the columns in between."""
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
    """Place the slots of a row, in order, as near as possible to the wanted positions.

    Least squares by pool adjacent violators: slots whose wanted positions overlap or cross move as
    one block.
    """
    blocks: list[tuple[float, int]] = []  # mean start that its slots want, and their number
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


DEFAULT_EP: Final = -1


def number_units(outline: Outline) -> list[int]:
    """Number of each node's unit; units are numbered in the order of their first nodes."""
    keys = _keys(outline, {})
    torn = _in_cycles(outline, keys)
    if torn:
        keys = _keys(outline, {owner: _pieces(outline, owner) for owner in torn})
    numbers: dict[tuple[int, int], int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def partition_units(outline: Outline, numbers: Sequence[int]) -> dict[int, list[int]]:
    """Units of each partition, in order; `numbers` has the unit of each node."""
    units: dict[int, dict[int, None]] = {}
    for owner, number in zip(outline.owners, numbers, strict=True):
        if owner != DEFAULT_EP:
            units.setdefault(owner, {})[number] = None
    return {owner: list(each) for owner, each in units.items()}


def _keys(outline: Outline, torn: dict[int, list[int]]) -> list[tuple[int, int]]:
    """Key of each node's unit: partition and piece, or first node of a run on the default EP."""
    after = successors(outline.predecessors)
    keys: list[tuple[int, int]] = []
    for node, (owner, before) in enumerate(zip(outline.owners, outline.predecessors, strict=True)):
        if owner != DEFAULT_EP:
            keys.append((owner, torn[owner][node] if owner in torn else 0))
            continue
        last = before[0] if len(before) == 1 else None
        goes_on = last is not None and outline.owners[last] == owner and len(after[last]) == 1
        keys.append(keys[last] if last is not None and goes_on else (owner, node))
    return keys


def _in_cycles(outline: Outline, keys: Sequence[tuple[int, int]]) -> list[int]:
    """Partitions that are in a cycle of units, or between two cycles."""
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
    """Piece number of each node of a partition; for other nodes, the last piece before them."""
    pieces: list[int] = []
    for mine, before in zip(outline.owners, outline.predecessors, strict=True):
        if mine == owner:
            least = 0
            for other in before:
                is_outside = outline.owners[other] != owner
                least = max(least, pieces[other] + 1 if is_outside else pieces[other])
            pieces.append(least)
        else:
            pieces.append(max((pieces[other] for other in before), default=-1))
    return pieces


NODE: Final = Size(width=160, height=40, across=18, down=22, gutter=64)
LEFT_HEIGHT: Final = 58
"""Height of a node's box that shows the reason for the default EP."""
UNIT: Final = Size(width=232, height=72, across=28, down=34, gutter=80)
UNKNOWN: Final = "no reason was given"


class Level(Struct, frozen=True, kw_only=True):
    """One level of detail: boxes and the edges between them; lists have an entry per box.

    Attributes:
        box: width and height of a box, in pixels.
        width: width of the whole drawing.
        height: height of the whole drawing.
        x: horizontal position of each box's centre.
        y: vertical position of each box's centre.
        edges: from box, to box, then x and y of each bend between them.
        titles: first line of each box, as an index into `words`.
        names: second line of each box.
        spans: third line of a box without a reason: its first and last node. Empty if no box of
            this level has one.
        eps: index into the report's list of EPs; -1 for the default EP.
        units: number of the unit that the box is, or is part of.
        reasons: reason for the default EP, as an index into `words`; -1 for other EPs.
        words: the texts, each once.
    """

    box: tuple[int, int]
    width: int
    height: int
    x: tuple[int, ...]
    y: tuple[int, ...]
    edges: tuple[tuple[int, ...], ...]
    titles: tuple[int, ...]
    names: tuple[str, ...]
    spans: tuple[str, ...]
    eps: tuple[int, ...]
    units: tuple[int, ...]
    reasons: tuple[int, ...]
    words: tuple[str, ...]


class Drawing(Struct, frozen=True, kw_only=True):
    """Drawing of a model, as read by the page's script."""

    units: Level
    nodes: Level


def draw(model: ModelReport, eps: Sequence[str]) -> Drawing | None:
    """Draw a model; None if its report has no outline.

    Args:
        eps: aliases of all EPs of the report.
    """
    outline = model.outline
    if outline is None or not outline.names:
        return None
    owners = [eps.index(part.provider) for part in model.partitions]
    units = number_units(outline)
    return Drawing(
        units=_unit_level(outline, units, owners, model.declined),
        nodes=_node_level(outline, units, owners, model.declined),
    )


def reason(declined: Decline) -> str:
    """Reason why a node was left, in one line."""
    return "; ".join(f"{ep}: {why}" for ep, why in declined.reasons) or "no EP was asked"


def _node_level(
    outline: Outline, units: Sequence[int], owners: Sequence[int], declined: Sequence[Decline]
) -> Level:
    why = _reasons(declined)
    return _level(
        outline.predecessors,
        replace(NODE, height=LEFT_HEIGHT) if DEFAULT_EP in outline.owners else NODE,
        titles=[outline.op_types[op] for op in outline.ops],
        names=outline.names,
        spans=(),
        eps=tuple(_ep(owner, owners) for owner in outline.owners),
        units=tuple(units),
        reasons=[why.get(name, UNKNOWN) for name in outline.names],
    )


def _unit_level(
    outline: Outline, units: Sequence[int], owners: Sequence[int], declined: Sequence[Decline]
) -> Level:
    why = _reasons(declined)
    pieces = partition_units(outline, units)
    members: list[list[int]] = [[] for _ in range(max(units) + 1)]
    needs: list[set[int]] = [set() for _ in members]
    for node, unit in enumerate(units):
        members[unit].append(node)
        needs[unit].update(units[other] for other in outline.predecessors[node])
    return _level(
        [sorted(each - {unit}) for unit, each in enumerate(needs)],
        UNIT,
        titles=[
            _title(outline, nodes, pieces.get(outline.owners[nodes[0]], [unit]), unit)
            for unit, nodes in enumerate(members)
        ],
        names=tuple(_contents(outline, outline.owners[nodes[0]], nodes) for nodes in members),
        spans=tuple(_span(outline, nodes) for nodes in members),
        eps=tuple(_ep(outline.owners[nodes[0]], owners) for nodes in members),
        units=tuple(range(len(members))),
        reasons=[
            _joined(why.get(outline.names[node], UNKNOWN) for node in nodes) for nodes in members
        ],
    )


def _joined(reasons: Iterable[str]) -> str:
    """Join different reasons of several nodes, at most three of them."""
    different = list(dict.fromkeys(reasons))
    return " | ".join(different[:3]) + (" | ..." if len(different) > 3 else "")


def _level(
    needs: Graph,
    size: Size,
    *,
    titles: Sequence[str],
    names: tuple[str, ...],
    spans: tuple[str, ...],
    eps: tuple[int, ...],
    units: tuple[int, ...],
    reasons: Sequence[str],
) -> Level:
    """Describe boxes; `reasons` only count for boxes of the default EP."""
    layout = lay_out(needs, size)
    words: dict[str, int] = {}
    return Level(
        box=(size.width, size.height),
        width=layout.width,
        height=layout.height,
        x=tuple(x for x, _ in layout.places),
        y=tuple(y for _, y in layout.places),
        edges=layout.edges,
        titles=tuple(words.setdefault(title, len(words)) for title in titles),
        names=names,
        spans=spans,
        eps=eps,
        units=units,
        reasons=tuple(
            words.setdefault(reason, len(words)) if ep == DEFAULT_EP else -1
            for reason, ep in zip(reasons, eps, strict=True)
        ),
        words=tuple(words),
    )


def _ep(owner: int, owners: Sequence[int]) -> int:
    return DEFAULT_EP if owner == DEFAULT_EP else owners[owner]


def _reasons(declined: Sequence[Decline]) -> Mapping[str, str]:
    return {each.node: reason(each) for each in declined}


def _title(outline: Outline, nodes: Sequence[int], pieces: Sequence[int], unit: int) -> str:
    owner, count = outline.owners[nodes[0]], f"{len(nodes):,} node{'s' * (len(nodes) != 1)}"
    if owner != DEFAULT_EP:
        piece = f" ({pieces.index(unit) + 1}/{len(pieces)})" if len(pieces) > 1 else ""
        return f"Partition {owner + 1}{piece}: {count}"
    if len(nodes) > 1:
        return f"{count} on the default EP"
    return outline.op_types[outline.ops[nodes[0]]]


def _span(outline: Outline, nodes: Sequence[int]) -> str:
    first, last = outline.names[nodes[0]], outline.names[nodes[-1]]
    return f"{first} … {last}" if len(nodes) > 1 else ""


def _contents(outline: Outline, owner: int, nodes: Sequence[int]) -> str:
    if len(nodes) == 1:
        op_type, name = outline.op_types[outline.ops[nodes[0]]], outline.names[nodes[0]]
        return name if owner == DEFAULT_EP else f"{op_type} {name}"
    operators = Counter(outline.op_types[outline.ops[node]] for node in nodes)
    return ", ".join(f"{count} {op}" for op, count in operators.most_common(4))
