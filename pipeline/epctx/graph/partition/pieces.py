"""Cuts of models into pieces that are compiled one by one.

`choose` decides where to cut, and `divide` cuts. `layout` has the places of a model and the values
that cross them. `balance` chooses among places: it cuts a row of blocks into runs so that, first,
the largest run is small, and then the tolls of the cuts are low. A block holds items, each with a
size. A run holds the items of its blocks, each once, so the size of a run never shrinks when the
run grows at either end. Every search in `balance` relies on that.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Final

import onnx_ir as ir

from epctx.errors import ManifestError, ModelError
from epctx.graph.dataflow import Dataflow, subgraphs
from epctx.graph.model import CutPlan, Partition
from epctx.graph.partition.borders import Names
from epctx.graph.partition.layout import Cost, Layout
from epctx.text import did_you_mean, size_words

SLACK: Final = 20
"""Inverse of the share (5 %) by which a run may exceed the smallest possible largest run to save
tolls. No run is smaller than this share of the smallest possible largest run, unless there are too
few blocks.
"""

Blocks = Sequence[Mapping[Hashable, int]]
"""Items of each block, with their sizes."""


def fewest(blocks: Blocks, limit: float) -> int | None:
    """Return the least number of runs of at most `limit`; None if one block alone exceeds it."""
    starts = _earliest_starts(blocks, limit)
    runs, end = 0, len(blocks)
    while end:
        if starts[end] == end:
            return None
        runs, end = runs + 1, starts[end]
    return runs


def balance(
    blocks: Blocks, tolls: Sequence[int], count: int, *, ceiling: float = math.inf
) -> list[int]:
    """Cut `blocks` into exactly `count` runs.

    The largest run is within `SLACK` of the smallest possible one, no run is almost empty, and the
    sum of tolls is minimal. Among equal sums the smaller largest run wins, then the cuts that come
    first.

    Args:
        blocks: at least `count` blocks.
        tolls: toll of a cut before each block; the first is not used.
        count: number of runs, at least one.
        ceiling: limit of a run, which `count` runs can keep to.

    Returns:
        The blocks that begin a run, ascending, without the first.
    """
    sizes = [sum(block.values()) for block in blocks]
    sought = range(max(sizes), sum(sizes))
    # Fewer runs are enough: to cut a run again makes no run larger.
    best = sought.start + bisect_left(
        sought, True, key=lambda limit: (fewest(blocks, limit) or 0) <= count
    )
    limits = best, min(best + best // SLACK, ceiling)
    choices = [_cheapest(blocks, tolls, count, best // SLACK, limit) for limit in limits]
    if not any(choices):
        choices = [_cheapest(blocks, tolls, count, 0, limit) for limit in limits]
    return min(filter(None, choices), key=lambda cuts: sum(tolls[cut] for cut in cuts), default=[])


def _earliest_starts(blocks: Blocks, limit: float) -> list[int]:
    """Return for each end (a number of blocks) the first block of the longest run to it.

    That is the end itself if the block before it exceeds the limit alone.
    """
    starts, start, total = [0], 0, 0
    held: Counter[Hashable] = Counter()
    for end, block in enumerate(blocks, 1):
        for key, item in block.items():
            total += 0 if held[key] else item
            held[key] += 1
        while total > limit and start < end:
            for key, item in blocks[start].items():
                held[key] -= 1
                total -= 0 if held[key] else item
            start += 1
        starts.append(start)
    return starts


def _cheapest(
    blocks: Blocks, tolls: Sequence[int], count: int, least: float, most: float
) -> list[int]:
    """Return the `count - 1` cuts with the smallest sum of tolls, each run from `least` to `most`;
    empty if there are none.

    Dynamic programming over (runs, ends), with a sliding-window minimum over the last cut.
    """
    starts = _earliest_starts(blocks, most)
    too_late = _earliest_starts(blocks, least - 1)  # a run that starts here or later is too small
    sums = [
        math.inf if start or not late else 0 for start, late in zip(starts, too_late, strict=True)
    ]
    last_cuts: list[list[int]] = []
    for _ in range(count - 1):
        window: deque[tuple[float, int]] = deque()
        longer, last_cut, seen = [math.inf], [0], 0
        for end in range(1, len(starts)):
            for cut in range(seen, too_late[end]):
                toll = sums[cut] + tolls[cut]
                while window and window[-1][0] > toll:
                    window.pop()
                window.append((toll, cut))
            seen = too_late[end]
            while window and window[0][1] < starts[end]:
                window.popleft()
            toll, cut = window[0] if window else (math.inf, 0)
            longer.append(toll)
            last_cut.append(cut)
        last_cuts.append(last_cut)
        sums = longer
    if sums[-1] == math.inf:
        return []
    end, cuts = len(starts) - 1, []
    for last_cut in reversed(last_cuts):
        end = last_cut[end]
        cuts.append(end)
    return cuts[::-1]


_KEY: Final = "partition.pieces"
_WHY: Final = "the fewest bytes cross, and the largest piece is at most 5 % above its minimum"
_UNLIKE: Final = 1.5
"""Greatest ratio of the largest piece to that of the first model alone, at which models are still
cut alike.
"""


def choose(
    models: Mapping[str, ir.Model],
    *,
    base: int,
    cost: Cost,
    count: int | None = None,
    max_memory: int | None = None,
    at: Sequence[str] = (),
    following: Collection[str] = (),
) -> dict[str, CutPlan]:
    """Choose the cuts of models that share contexts, or of one model.

    Under `count` or `max_memory`, the largest piece is within 5 % of the smallest possible one, and
    the fewest bytes cross. Places are chosen in the first model; a place in another model
    corresponds if the large weights used before it are the same, by content.

    Args:
        models: models by name, at least one. Their nodes are put in the order of the layers.
        base: bytes that the compile of an empty piece takes.
        cost: bytes that the compile takes for one initializer.
        count: number of pieces.
        max_memory: bytes for the largest piece; the number of pieces is the smallest that fits.
        at: names of values; each cut comes right after the node that makes the value. They are used
            if neither `count` nor `max_memory` is given.
        following: op types whose nodes may not be cut from the nodes that make their inputs.

    Raises:
        ManifestError: the first model cannot be cut as asked.
        ModelError: another model cannot be cut where the first one can, or only into unequal
            pieces.
    """
    layouts = {name: Layout(model, following) for name, model in models.items()}
    first = next(iter(layouts.values()))
    by_hand = count is None and max_memory is None
    places = _named_places(first, at) if by_hand else first.candidates
    rows = _corresponding([*layouts.values()], places)

    def pieces_of(chosen: Iterable[int]) -> tuple[int, ...]:
        return tuple(base + sum(block.values()) for block in first.blocks([*chosen], cost))

    def largest(chosen: Iterable[int]) -> int:
        return max(pieces_of(chosen))

    if by_hand:
        if len(rows) < len(places):
            raise _unlike(layouts)
        reasons = dict.fromkeys(places, f"{_KEY}.at")
    else:
        pick = partial(_balanced, first, cost, base, count, max_memory)
        try:
            reasons = pick([*rows])
        except ManifestError as error:
            pick(places)  # raises the fault of the first model alone
            raise _unlike(layouts) from error
        if len(rows) < len(places) and largest(reasons) > _UNLIKE * largest(pick(places)):
            raise _unlike(layouts)
    memory = pieces_of(reasons)
    return {
        name: CutPlan(
            cuts=layout.cuts({rows[place][number]: why for place, why in reasons.items()}),
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
        model: the model that `choose` got, unchanged since.
        pieces: the plan that `choose` returned for it.
    """
    layout = Layout(model)
    places = [layout.after[cut.after] for cut in pieces.cuts]
    needed: list[set[int]] = [set() for _ in layout.kept]  # the pieces that need each node
    for number in reversed(range(len(needed))):
        if layout.kept[number]:
            needed[number].add(bisect_right(places, number))
        for need in layout.flow.predecessors[number]:
            if layout.again[need]:
                needed[need] |= needed[number]
    names = Names(model.graph, (), ())
    members: list[list[ir.Node]] = [[] for _ in range(len(places) + 1)]
    instead: list[dict[ir.Value, ir.Value]] = [{} for _ in members]  # clones by piece
    for node, numbers in zip(layout.flow.nodes, needed, strict=True):
        first, *others = sorted(numbers)
        for piece in others:
            members[piece].append(_clone(node, f".piece{piece + 1}", names, instead[piece]))
        bodies = subgraphs(node) if instead[first] else ()
        for user in (node, *(inner for body in bodies for inner in body)):
            for place, value in enumerate(user.inputs):
                if value is not None and value in instead[first]:
                    user.replace_input_with(place, instead[first][value])
        members[first].append(node)
    model.graph.extend([node for piece in members for node in piece])  # moves nodes that are there
    flow, ends = Dataflow(model), [0, *accumulate(map(len, members))]
    return [flow.cut(i, range(ends[i], ends[i + 1])) for i in range(len(members))]


def _clone(node: ir.Node, suffix: str, names: Names, instead: dict[ir.Value, ir.Value]) -> ir.Node:
    """Clone a node without bodies, and add the clone's outputs to `instead`."""
    inputs = [value and instead.get(value, value) for value in node.inputs]
    copied = node.domain, node.op_type, inputs, node.attributes.values()
    clone = ir.Node(*copied, num_outputs=len(node.outputs), metadata_props=node.metadata_props)
    clone.name = node.name and names.node(f"{node.name}{suffix}")
    for old, new in zip(node.outputs, clone.outputs, strict=True):
        new.name = old.name and names.value(f"{old.name}{suffix}")
        new.type, new.shape = old.type, old.shape
        new.meta.update(old.meta)
        instead[old] = new
    return clone


def _balanced(
    layout: Layout,
    cost: Cost,
    base: int,
    count: int | None,
    max_memory: int | None,
    candidates: Sequence[int],
) -> dict[int, str]:
    """Choose among these places; return each chosen place with the reason for it."""
    blocks = layout.blocks(candidates, cost)
    ceiling = math.inf
    if count is None:
        assert max_memory is not None
        ceiling = max_memory - base
        count = fewest(blocks, ceiling)
    if count is None:
        sizes = [base + sum(block.values()) for block in blocks]
        largest = sizes.index(max(sizes))
        names = [f'"{layout.name_before(place)}"' for place in candidates]
        start, end = ["its start", *names][largest], [*names, "its end"][largest]
        raise ManifestError(
            "the model cannot be cut into pieces that fit",
            where=f"{_KEY}.max_memory",
            why=f"from {start} to {end} it cannot be cut and takes {size_words(sizes[largest])}",
            remedy=f"write at least {sizes[largest]}B",
        )
    if count > len(blocks):
        raise ManifestError(
            f"{count:,} pieces are more than the model can be cut into",
            where=f"{_KEY}.count",
            why=f"places at which it can be cut: {len(candidates):,}",
            remedy=f"write a count of at most {len(blocks):,}",
        )
    if not any(any(block.values()) for block in blocks):  # else as many nodes
        for anchor in layout.anchors:
            blocks[bisect_left(candidates, anchor)][anchor] = 1
    tolls = [0, *(layout.toll[place] for place in candidates)]
    chosen = balance(blocks, tolls, count, ceiling=ceiling)
    return dict.fromkeys((candidates[cut - 1] for cut in chosen), _WHY)


def _named_places(layout: Layout, at: Sequence[str]) -> list[int]:
    """Return the places right after the nodes that make these values, ascending."""
    named = sorted((_named_place(layout, name), name) for name in at)
    for (place, one), (other, two) in pairwise(named):
        if place == other:
            raise ManifestError(
                f'"{one}" and "{two}" are the same place',
                where=f"{_KEY}.at",
                remedy="remove one of them",
            )
    return [place for place, _ in named]


def _named_place(layout: Layout, name: str) -> int:
    """Return the place after the last node that is not computed again, up to the node that makes a
    value. Nodes between the two go to the pieces that use them.
    """
    anchors = [0, *layout.anchors]
    place = anchors[bisect_right(anchors, layout.after.get(name, 0)) - 1]
    if place in layout.candidates:
        return place
    if name in layout.after:
        why = next(
            (reason for (start, end), reason in layout.barriers if start < place <= end),
            "a piece would have only nodes that every piece computes, or that no output needs",
        )
        near = bisect_right(layout.candidates, place)
        nearest = map(layout.name_before, layout.candidates[max(0, near - 1) : near + 1])
        names = " or ".join(f'"{name}"' for name in nearest)
        remedy = f"cut after {names}" if names else "remove it: the model cannot be cut"
    else:
        why = "no node of the main graph makes it; bodies of If, Loop and Scan are never cut"
        remedy = did_you_mean(name, map(layout.name_before, layout.candidates))
    raise ManifestError(
        f'the model cannot be cut after "{name}"', where=f"{_KEY}.at", why=why, remedy=remedy
    )


def _corresponding(layouts: Sequence[Layout], places: Sequence[int]) -> dict[int, list[int]]:
    """Return for places of the first model, ascending, the place in each of the models.

    The same large weights are used before corresponding places. Among several such places, those
    after values of the same name correspond. If fewer bytes cross at another place, names do not
    suffice: only the place with the fewest bytes corresponds.
    """
    first, *others = layouts
    if not others:
        return {place: [place] for place in places}

    def same_name(place: int) -> list[int]:
        return [other.after.get(first.name_before(place), 0) for other in others]

    rows: dict[int, list[int]] = {}
    groups = [_by_weights(layout, layout.candidates) for layout in others]
    for weights, own in _by_weights(first, places).items():
        theirs = [group.get(weights, {}) for group in groups]
        if not all(theirs):
            continue
        named, last = dict[int, list[int]](), [0] * len(others)
        for place in own:
            row = same_name(place)
            if all(p in tolls and p > q for p, q, tolls in zip(row, last, theirs, strict=True)):
                named[place] = last = row
        best = min(own, key=own.__getitem__)
        if own[best] < min((own[place] for place in named), default=math.inf):
            pairs = zip(same_name(best), theirs, strict=True)
            row = [p if p in tolls else min(tolls, key=tolls.__getitem__) for p, tolls in pairs]
            named = {best: row}
        rows |= {place: [place, *row] for place, row in named.items()}
    return rows


def _by_weights(layout: Layout, places: Sequence[int]) -> dict[int, dict[int, int]]:
    """Return places with their tolls, by the sum of the digests of large weights before them."""
    weights = layout.large_weights()
    sums = [0, *accumulate(weights)]
    nodes = [node for node, _ in weights.values()]
    groups: dict[int, dict[int, int]] = defaultdict(dict)
    for place in places:
        groups[sums[bisect_left(nodes, place)]][place] = layout.toll[place]
    return groups


def _unlike(layouts: Mapping[str, Layout]) -> ModelError:
    """Return an error that names the first large weight that only one of two models has."""
    weights = {name: layout.large_weights() for name, layout in layouts.items()}
    first, *others = weights
    reasons = [
        (model, f'{one} uses the weight "{value.name}", {other} has no weight of that content')
        for model in others
        for one, other in ((first, model), (model, first))
        for content, (_, value) in weights[one].items()
        if content not in weights[other]
    ]
    reasons.append(
        (others[-1], "the models share no place before which they use the same large weights")
    )
    model, why = reasons[0]
    return ModelError(
        f"cannot be cut like {first}, with which it shares contexts",
        model=model,
        why=why,
        remedy="export both from the same weights, or take one of them out of the sharing group",
    )
