"""Find sizes for the open dimensions of a model, at which ONNX Runtime's CPU EP runs it.

`epctx init` needs them: a starter manifest fixes the sizes that NPUs want fixed. No model says
which sizes fit each other (a total of past and sequence, an image as wide as high, as many channels
as a filter has). So proposals are tried first. Then a search goes on from failed runs: the attempt
that ran more nodes is nearer.
"""

from __future__ import annotations

import ast
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import combinations, pairwise, permutations, product
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from epctx import limits
from epctx.actions.action import Action, StageStarted, WorkerContext
from epctx.manifest import ModelSource, VerifyInputs
from epctx.verification.numbers.sizes import Sizes

if TYPE_CHECKING:
    import onnx

    from epctx.verification.numbers.expected import Expected

Attempt = Callable[[Sizes], int | None]
"""Runs a model at these sizes; returns None if it runs, else the number of nodes that ran."""

_FAILED: Final = re.compile(r"while running (\S+) node\. Name:'([^']*)'")
_FIRST: Final = (2, 5, 3, 7, 4, 9, 6, 8, 11, 13, 10, 12)
"""Distinct sizes. 1 is left out, since it may fit by accident."""
_USUAL: Final = (
    *range(1, 17),
    *(20, 24, 28, 30, 32, 40, 48, 50, 56, 64, 77, 80, 96, 100, 112, 128, 160, 192, 196, 224, 256),
    *(299, 320, 384, 416, 448, 512, 640, 768, 800, 1024, 1500, 3000),
)
"""Usual sizes of trained models."""
_SINGLE: Final = (*range(1, 17), 32, 64, 80, 96, 128, 256)
"""Usual sizes of one dimension alone, such as a head of attention."""
_BRIEFLY: Final = 200
"""Number of attempts from one plan before other plans follow."""
_OF_THE_MODEL: Final = 12
"""Number of sizes of a model's own weights that are tried early, and in pairs."""
_LARGEST: Final = 2**31 - 1


class SizesResult(Struct, frozen=True, kw_only=True):
    """Sizes of all open dimensions, by name; None if the model ran at none of the tried sizes.

    Attributes:
        why: ONNX Runtime's error at the first sizes that failed, or why it cannot run the model on
            this host; empty if the first sizes work.
        ended: the limit that ended the search; empty if all sizes were tried.
    """

    sizes: Sizes | None
    why: str = ""
    ended: str = ""


class FindSizes(Action[SizesResult], frozen=True, kw_only=True):
    """Find sizes for the open dimensions of a model, at which it runs.

    Attributes:
        source: the model.
        fixed: sizes that stay, by name of the dimension.
        proposals: sets of sizes of all open dimensions, at least one; the first set that works is
            taken.
        single: dimensions that should be 1; others are searched with these at 1 first.
    """

    result = SizesResult

    source: ModelSource
    fixed: Sizes
    proposals: tuple[Sizes, ...]
    single: tuple[str, ...] = ()

    def run(self, worker: WorkerContext) -> SizesResult:
        """Raises ModelError if no session can be made of the model."""
        from epctx.graph.serde import reader
        from epctx.verification.numbers.expected import Expected, NotHere
        from epctx.verification.numbers.input_sets import InputSets
        from epctx.verification.numbers.source_model import SourceModel

        worker.started(StageStarted(stage="source", model=f"{self.source.name} (source)"))
        model = SourceModel.read(self.source)
        trial = _Trial(expected=Expected(model, model.inputs, InputSets(VerifyInputs())))
        try:
            for sizes in self.proposals:
                if trial.runs(sizes):
                    return SizesResult(sizes=sizes, why=trial.first)
            ended = ""
            trial.nodes = NodeOrder.of(reader.read(self.source.path))
            for fixed in ({**dict.fromkeys(self.single, 1), **self.fixed}, self.fixed):
                search = Search(
                    start=self.proposals[0],
                    fixed=fixed,
                    attempt=trial.attempt,
                    neighbours=[p for i in model.inputs for p in pairwise(i.open.values())],
                    model_sizes=trial.nodes.sizes,
                )
                sizes_found = search.find()
                if sizes_found is not None:
                    return SizesResult(sizes=sizes_found, why=trial.first)
                ended = ended or search.ended
        except NotHere as error:
            return SizesResult(sizes=None, why=str(error))
        return SizesResult(sizes=None, why=trial.first, ended=ended)


class _Trial(Struct, dict=True):
    """Runs a source at sizes that may not fit; `first` is ONNX Runtime's first error."""

    expected: Expected
    nodes: NodeOrder | None = None
    first: str = ""

    def runs(self, sizes: Sizes) -> bool:
        """Tell whether it runs at sizes, and ONNX Runtime loads it with these sizes fixed."""
        why = self.expected.try_sizes(sizes) or self._refusal(sizes)
        self.first = self.first or why or ""
        return why is None

    @cached_property
    def _branched(self) -> onnx.ModelProto | None:
        """Return the model if it has bodies, which may not fit fixed sizes; else None."""
        from epctx.graph.serde import protos
        from epctx.verification.numbers import sessions  # needs onnxruntime

        model = sessions.mapped(self.expected.source.source)
        return model if len(list(protos.graphs(model))) > 1 else None

    def _refusal(self, sizes: Sizes) -> str | None:
        """Return the error of ONNX Runtime about the model with fixed sizes; None if it loads."""
        from epctx.verification.numbers import sessions

        model = self._branched
        if model is None:
            return None
        shapes = {spec.name: spec.fixed(sizes).shape for spec in self.expected.inputs if spec.open}
        for info in model.graph.input:
            if info.name in shapes:
                del info.type.tensor_type.shape.dim[:]
                for size in shapes[info.name]:
                    info.type.tensor_type.shape.dim.add(dim_value=int(size or 1))
        try:
            sessions.open_source(self.expected.source.source, changed=model.SerializeToString())
        except Exception as error:  # onnxruntime's errors have no common class
            return sessions.words(error)
        return None

    def attempt(self, sizes: Sizes) -> int | None:
        """Run it, as an `Attempt`, without optimizations first: they rename nodes."""
        assert self.nodes is not None
        why = self.expected.try_sizes(sizes, optimized=False)
        if why is not None:
            return self.nodes.reached(why)
        return None if self.runs(sizes) else -1


class NodeOrder(Struct, frozen=True, kw_only=True):
    """Order of a model's nodes, by which the node of a failed run is located.

    Attributes:
        names: number of nodes before a node, by name.
        op_types: number of nodes before the first node of an op type.
        sizes: dimensions of its weights, the most frequent first.
    """

    names: Mapping[str, int]
    op_types: Mapping[str, int]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> NodeOrder:
        """Return the order of the nodes of the main graph."""
        from epctx.graph.serde import protos

        op_types: dict[str, int] = {}
        for place, node in enumerate(model.graph.node):
            op_types.setdefault(node.op_type, place)
        sizes = Counter(size for tensor in protos.tensors(model) for size in tensor.dims)
        return cls(
            names={node.name: place for place, node in enumerate(model.graph.node) if node.name},
            op_types=op_types,
            sizes=tuple(size for size, _ in sizes.most_common() if size > 1),
        )

    def reached(self, error: str) -> int:
        """Return the number of nodes before the one that failed; -1 if the error does not
        name it.
        """
        failed = _FAILED.search(error)
        if failed is None:
            return -1
        op_type, name = failed.groups()
        return self.names.get(name, self.op_types.get(op_type, -1))


class Search(Struct, kw_only=True):
    """Searches sizes of one model.

    Attributes:
        start: first sizes of all open dimensions, by name.
        fixed: sizes that stay, by name.
        attempt: runs the model.
        neighbours: pairs of adjacent dimensions, such as height and width.
        model_sizes: sizes that occur in the model, the most frequent first.
        ended: the limit that ended it, and the variable that sets another.
    """

    start: Sizes
    fixed: Sizes
    attempt: Attempt
    neighbours: Sequence[tuple[str, str]] = ()
    model_sizes: Sequence[int] = ()
    runs: int = 0
    ended: str = ""
    _tried: dict[tuple[int, ...], int | None] = field(default_factory=dict)
    _begun: float = 0.0

    def find(self) -> Sizes | None:
        """Return sizes of all open dimensions; None if the model runs at none of those tried."""
        self._begun = time.monotonic()
        apart = dict(zip(self.start, (*_FIRST, *range(14, 14 + len(self.start))), strict=False))
        plans = [{**plan, **self.fixed} for plan in (self.start, apart, dict.fromkeys(apart, 2))]
        try:
            reached = [self._try(plan) for plan in plans]
            for sizes, result in zip(plans, reached, strict=True):
                if result is None:
                    return sizes
            for most in (_BRIEFLY, limits.SIZE_RUNS.value):
                for place in sorted(range(len(plans)), key=lambda place: -(reached[place] or 0)):
                    solution = self._climb(plans[place], reached[place] or 0, most)
                    if solution is not None:
                        return solution
        except _Ended as end:
            self.ended = str(end)
        return None

    def _climb(self, sizes: Sizes, reached: int, most: int) -> Sizes | None:
        """Change sizes so that more nodes run, until all do.

        Returns:
            The sizes; None if no change helps, or more than `most` changes in a row did not.
        """
        moved = True
        while moved:
            moved, before = False, self.runs
            for move in self._moves(sizes):
                if self.runs - before > most:
                    return None
                changed = {**sizes, **move}
                result = self._try(changed)
                if result is None:
                    return changed
                if result > reached:
                    sizes, reached, moved = changed, result, True
                    break
        return None

    def _moves(self, sizes: Sizes) -> Iterator[Sizes]:
        """Yield changes to try: sums of other sizes, then likely sizes of one dimension, then
        larger and larger sizes.
        """
        free = [name for name in sizes if name not in self.fixed]
        for count in (1, 2):
            for name in free:
                others = (size for other, size in sizes.items() if other != name)
                yield from ({name: sum(each)} for each in combinations(others, count))
        yield dict.fromkeys(free, 1)
        own = self.model_sizes[:_OF_THE_MODEL]
        for name in free:
            yield from ({name: size} for size in dict.fromkeys((*own, *_SINGLE)))
        pairs = [pair for pair in self.neighbours if set(pair) <= set(free)]
        for size in dict.fromkeys((1, 2, 3, 4, *sorted(own), *_USUAL)):
            yield from (dict.fromkeys(names, size) for names in (*((n,) for n in free), *pairs))
        for one, other in permutations(free, 2):
            yield from ({one: a, other: b} for a, b in product(own, own))

    def _try(self, sizes: Sizes) -> int | None:
        values = tuple(sizes.values())
        if values not in self._tried:
            seconds = time.monotonic() - self._begun
            for limit, used in ((limits.SIZE_RUNS, self.runs), (limits.SIZE_SECONDS, seconds)):
                if used >= limit.value:
                    raise _Ended(f"{limit}; {limit.variable} sets another limit")
            self.runs += 1
            self._tried[values] = self.attempt(sizes)
        return self._tried[values]


class _Ended(Exception):
    """Raised when the search has used up a limit, which is its text."""


def total(name: str, sizes: Sizes) -> int | None:
    """Return the size that a name implies: `past + 1`, or `total_length` beside a past and a
    length.

    Args:
        sizes: sizes of dimensions, by name.
    """
    size = None
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # of a deep expression
        tree = ast.parse(name.replace("_plus_", "+"), mode="eval").body
        size = None if isinstance(tree, ast.Name) else _sum(tree, sizes)
    if size is not None or "total" not in name:
        return size if size is not None and 0 < size <= _LARGEST else None
    past = [each for each in sizes if "past" in each and "total" not in each]
    new = [each for each in sizes if "seq" in each and each not in past and "total" not in each]
    return sizes[past[0]] + sizes[new[0]] if len(past) == len(new) == 1 else None


def _sum(tree: ast.expr, sizes: Sizes) -> int | None:
    """Return the value of sums, differences and products of sizes and numbers; None otherwise."""
    match tree:
        case ast.Name(id=name):
            return sizes.get(name)
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=operator, right=right):
            one, other = _sum(left, sizes), _sum(right, sizes)
            if one is None or other is None:
                return None
            match operator:
                case ast.Add():
                    return one + other
                case ast.Sub():
                    return one - other
                case ast.Mult():
                    return one * other
    return None
