"""A model's partition graph as the page draws it: first its units, then each of its nodes.

A unit is a partition, a piece of one, or a run of nodes that were left to the default EP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from epctx.commands.report import coordinates
from epctx.commands.report import units as parts
from epctx.commands.report.coordinates import Size
from epctx.commands.report.layering import Graph
from epctx.commands.report.units import DEFAULT_EP
from epctx.graph.model import Decline, Outline
from epctx.stages.report import ModelReport

NODE: Final = Size(width=160, height=40, across=18, down=22, gutter=64)
LEFT_HEIGHT: Final = 58
"""Of a node's box where some are left to the default EP: with a line for the reason."""
UNIT: Final = Size(width=232, height=72, across=28, down=34, gutter=80)
UNKNOWN: Final = "no reason was given"


class Level(Struct, frozen=True, kw_only=True):
    """One degree of detail: boxes and what runs between them; lists have an entry for each box.

    Attributes:
        box: width and height of a box, in pixels.
        width: of the whole drawing.
        height: likewise.
        x: of each box's centre.
        y: likewise.
        edges: from box, to box, then x and y of each bend between them.
        titles: the first line in a box: a place in `words`.
        names: the second line.
        spans: the third line of a box that has no reason: names of its first and last node; empty:
            no box of this level has one.
        eps: place in the report's list of EPs; -1: the default EP.
        units: the unit that it is, or is in.
        reasons: why it is left to the default EP: a place in `words`; -1: it is not.
        words: each text once.
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
    """A model: what the page's script reads."""

    units: Level
    nodes: Level


def draw(model: ModelReport, eps: Sequence[str]) -> Drawing | None:
    """Draw a model; None: its report has no outline.

    Args:
        eps: every EP of the report, by its alias.
    """
    outline = model.outline
    if outline is None or not outline.names:
        return None
    owners = [eps.index(part.provider) for part in model.partitions]
    units = parts.units(outline)
    return Drawing(
        units=_unit_level(outline, units, owners, model.declined),
        nodes=_node_level(outline, units, owners, model.declined),
    )


def reason(declined: Decline) -> str:
    """Why a node was left, in one line."""
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
    pieces = parts.pieces(outline, units)
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
    """Different reasons of several nodes, the first three of them."""
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
    """Of the `reasons` those count that are of boxes of the default EP."""
    layout = coordinates.place(needs, size)
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
    found = Counter(outline.op_types[outline.ops[node]] for node in nodes)
    return ", ".join(f"{count} {op}" for op, count in found.most_common(4))
