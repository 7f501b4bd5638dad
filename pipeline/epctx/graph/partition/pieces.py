"""Where a model is cut into pieces that are compiled one by one.

`choose` decides and changes nothing; `divide` carries a decision out. `layout` has what a model
offers: places and what crosses them; `balance` chooses among places.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NoReturn

import onnx_ir as ir

from epctx.errors import ManifestError, ModelError
from epctx.graph.dataflow import Dataflow, captured, subgraphs
from epctx.graph.model import CutPlan, Partition
from epctx.graph.partition.balance import Blocks, balance, fewest, size
from epctx.graph.partition.layout import Cost, Layout
from epctx.graph.partition.naming import first_free
from epctx.text import did_you_mean, size_words

_KEY: Final = "partition.pieces"


def choose(
    models: Mapping[str, ir.Model],
    *,
    base: int,
    cost: Cost,
    count: int | None = None,
    max_memory: int | None = None,
    at: Sequence[str] = (),
) -> dict[str, CutPlan]:
    """Decide where models are cut that share contexts, or where one model is.

    With `count` or `max_memory`, the largest piece is as small as can be, give or take 5 %, and the
    fewest bytes cross. Places are chosen in the first model; in the others a place corresponds if
    the large weights used before it are the same, by content.

    Args:
        models: by name; at least one. Their main graphs are sorted where they were not.
        base: bytes that the compile of an empty piece takes.
        cost: bytes that the compile takes for one initializer.
        count: the number of pieces.
        max_memory: bytes for the largest piece; the number of pieces is the smallest that fits.
        at: values; each cut comes right after the node that makes one. Used if neither of the
            others is given.

    Raises:
        ManifestError: the first model cannot be cut as asked.
        ModelError: another model cannot be cut where the first one can.
    """
    layouts = {name: Layout(model) for name, model in models.items()}
    first, *others = layouts.values()
    named = count is None and max_memory is None
    places = _named_places(first, at) if named else first.candidates
    everywhere = {place: [place] for place in places}
    for layout in others:
        pairs = _corresponding(first, first.candidates if named else [*everywhere], layout)
        if named and not everywhere.keys() <= pairs.keys():
            pairs = _corresponding(first, [*everywhere], layout)
        everywhere = {p: [*row, pairs[p]] for p, row in everywhere.items() if p in pairs}

    def pick(candidates: Sequence[int]) -> dict[int, str]:
        return _balanced(first, candidates, base, cost, count, max_memory)

    if named:
        chosen = dict.fromkeys(places, f"{_KEY}.at")
        if len(everywhere) < len(places):
            raise _unlike(layouts)
    else:
        try:
            chosen = pick([*everywhere])
        except ManifestError as error:
            if len(everywhere) == len(places):
                raise
            pick(places)  # an error of the first model alone is the one to report
            raise _unlike(layouts) from error
    blocks = first.blocks([*chosen], cost)
    memory = tuple(base + sum(block.values()) for block in blocks)
    return {
        name: CutPlan(
            cuts=layout.cuts({everywhere[place][number]: why for place, why in chosen.items()}),
            memory=memory,
        )
        for number, (name, layout) in enumerate(layouts.items())
    }


def divide(model: ir.Model, pieces: CutPlan) -> list[Partition]:
    """Prepare a model for `surgery.extract`: piece `i`, counted from 0, is partition `i`.

    Every node of the main graph is in one partition. Nodes that several pieces compute are cloned;
    the clone for piece 2 of node or value "mask" is called "mask.piece2". The main graph's nodes
    are put in the order of the pieces. What the model computes does not change.

    Args:
        model: what `choose` got, unchanged since.
        pieces: what `choose` returned for it.
    """
    layout = Layout(model)
    members = layout.members([layout.after[cut.after] for cut in pieces.cuts])
    clones = _clone(model, layout.flow, members)
    ordered = [
        node
        for number, piece in enumerate(members)
        for node in (clones.get((place, number), layout.flow.nodes[place]) for place in piece)
    ]
    model.graph.extend(ordered)  # moves the nodes that are in the graph already
    flow, start, partitions = Dataflow(model), 0, []
    for number, piece in enumerate(members):
        partitions.append(flow.cut(number, range(start, start + len(piece))))
        start += len(piece)
    return partitions


def _clone(
    model: ir.Model, flow: Dataflow, members: Sequence[Sequence[int]]
) -> dict[tuple[int, int], ir.Node]:
    """Clone nodes for every piece but the first that has them, and let the piece's nodes use them.

    Returns the clone for each node and piece, counted from 0.
    """
    inputs = [node.inputs for node in flow.nodes]  # as they are before any is replaced
    nodes = {node.name for node in flow.nodes}
    values = {value.name for value in (*model.graph.inputs, *flow.producer)}
    values.update(model.graph.initializers)
    for node in flow.nodes:
        for body in subgraphs(node):
            values.update(value.name for value in (*body.inputs, *body.initializers.values()))
            values.update(value.name for inner in body for value in inner.outputs)
    placed: set[int] = set()
    clones: dict[tuple[int, int], ir.Node] = {}
    for piece, places in enumerate(members):
        instead: dict[ir.Value, ir.Value] = {}
        for place in places:
            own = flow.nodes[place]
            if place not in placed:
                placed.add(place)
                _use(own, instead)
                continue
            used = [value and instead.get(value, value) for value in inputs[place]]
            clone = _cloned(own, used)
            _name(clone, own, f".piece{piece + 1}", nodes, values)
            instead.update(zip(own.outputs, clone.outputs, strict=True))
            clones[place, piece] = clone
    return clones


def _cloned(node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Node:
    clone = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        node.attributes.values(),
        overload=node.overload,
        num_outputs=len(node.outputs),
        version=node.version,
        doc_string=node.doc_string,
        metadata_props=dict(node.metadata_props),
    )
    clone.meta.update(node.meta)
    for old, new in zip(node.outputs, clone.outputs, strict=True):
        new.type, new.doc_string = old.type, old.doc_string
        new.shape = None if old.shape is None else old.shape.copy()
        new.metadata_props.update(old.metadata_props)
        new.meta.update(old.meta)
    return clone


def _name(
    clone: ir.Node, node: ir.Node, suffix: str, nodes: set[str | None], values: set[str | None]
) -> None:
    """Name a clone and what it makes; what has no name gets none."""
    clone.name = node.name and first_free(f"{node.name}{suffix}", (nodes,))
    nodes.add(clone.name)
    for old, new in zip(node.outputs, clone.outputs, strict=True):
        new.name = old.name and first_free(f"{old.name}{suffix}", (values,))
        values.add(new.name)


def _use(node: ir.Node, instead: Mapping[ir.Value, ir.Value]) -> None:
    """Replace what a node uses, in its bodies too."""
    if not instead:
        return
    for user in (node, *(inner for body in subgraphs(node) for inner in body)):
        for place, value in enumerate(user.inputs):
            if value is not None and value in instead:
                user.replace_input_with(place, instead[value])


def _balanced(
    layout: Layout,
    candidates: Sequence[int],
    base: int,
    cost: Cost,
    count: int | None,
    max_memory: int | None,
) -> dict[int, str]:
    """Choose among these places; return each chosen place with the reason for it."""
    blocks: Blocks = layout.blocks(candidates, cost)
    ceiling = None
    if max_memory is not None and count is None:
        ceiling = max_memory - base
        count = fewest(blocks, ceiling)
    if count is None:
        raise _too_large(layout, candidates, [base + size([block]) for block in blocks])
    if count > len(blocks):
        raise ManifestError(
            f"{count:,} pieces are more than the model can be cut into",
            where=f"{_KEY}.count",
            why=f"places at which it can be cut: {len(candidates):,}",
            remedy=f"write a count of at most {len(blocks):,}",
        )
    if not any(blocks):  # without weights, pieces have equal numbers of nodes
        ceiling = None
        nodes: list[dict[Hashable, int]] = [{} for _ in blocks]
        for anchor in layout.anchors:
            nodes[bisect_right(candidates, anchor - 1)][anchor] = 1
        blocks = nodes
    tolls = [0, *(layout.toll[place] for place in candidates)]
    result = balance(blocks, tolls, count, ceiling=ceiling)
    reasons = {}
    for cut, choices in zip(result.cuts, result.choices, strict=True):
        among = f"of the {choices:,} places" if choices > 1 else "at the only place"
        reasons[candidates[cut - 1]] = (
            f"fewest bytes cross here ({tolls[cut]:,}) {among} at which the pieces stay within 5 % "
            "of the smallest largest one"
        )
    return reasons


def _too_large(layout: Layout, candidates: Sequence[int], sizes: Sequence[int]) -> ManifestError:
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    ends = []
    if largest:
        ends.append(f'after "{layout.name_before(candidates[largest - 1])}"')
    if largest < len(candidates):
        ends.append(f'up to "{layout.name_before(candidates[largest])}"')
    return ManifestError(
        "no way to cut the model fits",
        where=f"{_KEY}.max_memory",
        why=f"the piece {' '.join(ends)} cannot be cut and takes {size_words(sizes[largest])}"
        if ends
        else f"the model cannot be cut and takes {size_words(sizes[largest])}",
        remedy=f"write at least {sizes[largest]}B",
    )


def _named_places(layout: Layout, at: Iterable[str]) -> list[int]:
    """Return the places right after the nodes that make these values, ascending."""
    places: dict[int, str] = {}
    for name in at:
        place = _named_place(layout, name)
        if place in places:
            raise ManifestError(
                f'"{places[place]}" and "{name}" are the same place'
                if name != places[place]
                else f'"{name}" is there twice',
                where=f"{_KEY}.at",
                remedy="remove one of them",
            )
        places[place] = name
    return sorted(places)


def _named_place(layout: Layout, name: str) -> int:
    """Return the place after the last node, up to the one that makes a value, that is not computed
    again: what is between them goes where it is used.
    """
    if name not in layout.after:
        _refuse_name(layout, name)
    number = bisect_right(layout.anchors, layout.after[name])
    if number in (0, len(layout.anchors)):
        side = "behind" if number else "before"
        raise ManifestError(
            f'a cut after "{name}" leaves a piece without nodes of its own',
            where=f"{_KEY}.at",
            why=f"every node {side} it is computed again in each piece or leads to no output",
            remedy=_near(layout, layout.after[name]),
        )
    place = layout.anchors[number - 1]
    for value, (first, last) in layout.spans.items():
        stop, why = layout.barrier(value) if first <= place <= last else (0, "")
        if stop >= place:
            raise ManifestError(
                f'the model cannot be cut after "{name}"',
                where=f"{_KEY}.at",
                why=f'"{value.name}" would cross: {why}',
                remedy=_near(layout, place),
            )
    return place


def _refuse_name(layout: Layout, name: str) -> NoReturn:
    inner = {value.name for node in layout.flow.nodes for value in captured(node)}
    graph = layout.graph
    if name in {value.name for value in graph.inputs}:
        why = "it is an input of the model, which no node makes"
    elif name in graph.initializers:
        why = "it is an initializer, which no node makes"
    elif name in inner:
        why = "it is made inside a body of If, Loop or Scan, which is never cut"
    else:
        why = "no node makes it"
    raise ManifestError(
        f'the model cannot be cut after "{name}"',
        where=f"{_KEY}.at",
        why=why,
        remedy=did_you_mean(name, map(layout.name_before, layout.candidates)),
    )


def _near(layout: Layout, place: int) -> str:
    """Return a remedy: the nearest places at which the model can be cut."""
    number = bisect_right(layout.candidates, place)
    near = map(layout.name_before, layout.candidates[max(0, number - 1) : number + 1])
    names = " or ".join(f'"{name}"' for name in near)
    return f"cut after {names}" if names else "remove it: the model cannot be cut"


def _corresponding(first: Layout, places: Sequence[int], other: Layout) -> dict[int, int]:
    """Return for places of `first` a place of `other` with the same large weights before it.

    Values of the same name are at the same place. Where fewer bytes cross elsewhere between these
    weights, names do not say enough: places of the same rank correspond if there are equally many,
    else the ones that the fewest bytes cross.
    """
    here, there = (_by_weights(*side) for side in ((first, places), (other, other.candidates)))
    toll = first.toll.__getitem__
    pairs: dict[int, int] = {}
    for key, own in here.items():
        theirs = there.get(key, [])
        named = {name: place for place in theirs for name in other.names_before(place)}
        last, found = 0, dict[int, int]()
        for place in own:
            match = max((named.get(name, 0) for name in first.names_before(place)), default=0)
            if match > last:
                last = found[place] = match
        cheapest = min(own, key=toll)
        if theirs and toll(cheapest) < min(map(toll, found), default=math.inf):
            found = {cheapest: min(theirs, key=other.toll.__getitem__)}
            if len(own) == len(theirs):
                found = dict(zip(own, theirs, strict=True))
        pairs |= found
    return pairs


def _by_weights(layout: Layout, places: Sequence[int]) -> dict[int, list[int]]:
    """Group places by the set of large weights used before them, as the sum of their digests."""
    sums = [0] * (len(layout.order) + 1)
    for position, _, content in layout.large_weights:
        sums[position + 1] += content
    prefix = [total % 2**128 for total in accumulate(sums)]
    groups: dict[int, list[int]] = defaultdict(list)
    for place in places:
        groups[prefix[place]].append(place)
    return groups


def _unlike(layouts: Mapping[str, Layout]) -> ModelError:
    """Return an error that names the first large weight in which a model differs from the first."""
    (first_name, first), *others = layouts.items()
    model, why = others[-1][0], "no place has the same large weights before it in all of them"
    for name, layout in others:
        own, theirs = first.large_weights, layout.large_weights
        both = {content for *_, content in own} & {content for *_, content in theirs}
        strange = [
            f'{has} uses the weight "{value.name}", {lacks} has none of that content'
            for has, lacks, weights in ((first_name, name, own), (name, first_name, theirs))
            for _, value, content in weights
            if content not in both
        ]
        strange += [
            f'after the same weights, {first_name} uses "{one.name}" and {name} "{two.name}"'
            for (_, one, content), (_, two, other) in zip(own, theirs, strict=False)
            if content != other
        ]
        if strange:
            model, why = name, strange[0]
            break
    return ModelError(
        f"cannot be cut like {first_name}, with which it shares contexts",
        model=model,
        why=why,
        remedy="export both from the same weights, or take one of them out of the sharing group",
    )
