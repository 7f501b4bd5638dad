"""Find sizes for the open dimensions of a model, at which ONNX Runtime's CPU EP runs it.

`epctx init` asks for them: a starter manifest fixes what NPUs want fixed. No model says which sizes
fit each other (a total that is a past and a sequence, an image as wide as high, as many channels as
a filter has). So proposals are tried first. Then a search goes on from where a run failed: of two
attempts the one is nearer that ran more nodes.
"""

from __future__ import annotations

import ast
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise, permutations, product
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from epctx import limits
from epctx.actions.action import Action, StageStarted, WorkerContext
from epctx.manifest import ModelSource, VerifyInputs

if TYPE_CHECKING:
    import onnx

    from epctx.graph.inputs import InputSpec
    from epctx.verification.numbers.expected import Expected

Sizes = Mapping[str, int]
"""Of open dimensions, by name."""
Attempt = Callable[[Sizes], int | None]
"""Run a model at these sizes: None if it runs, else how many of its nodes did."""

_FAILED: Final = re.compile(r"while running (\S+) node\. Name:'([^']*)'")
_FIRST: Final = (2, 5, 3, 7, 4, 9, 6, 8, 11, 13, 10, 12)
"""Sizes that all differ, none of them 1: that fits where it should not."""
_USUAL: Final = (
    *range(1, 17),
    *(20, 24, 28, 30, 32, 40, 48, 50, 56, 64, 77, 80, 96, 100, 112, 128, 160, 192, 196, 224, 256),
    *(299, 320, 384, 416, 448, 512, 640, 768, 800, 1024, 1500, 3000),
)
"""Sizes that people train models with."""
_SINGLE: Final = (*range(1, 17), 32, 64, 80, 96, 128, 256)
"""Sizes that a dimension has by itself, as a head of attention."""
_BRIEFLY: Final = 200
"""Attempts from one plan before others have their turn."""
_OF_THE_MODEL: Final = 12
"""So many sizes of a model's own weights are tried early, and in pairs."""


class SizesResult(Struct, frozen=True, kw_only=True):
    """Sizes of all open dimensions, by name; None if the model runs at none that was tried.

    Attributes:
        why: what ONNX Runtime says of the first ones; empty if these run.
    """

    sizes: Sizes | None
    why: str = ""


class FindSizes(Action[SizesResult], frozen=True, kw_only=True):
    """Find sizes for the open dimensions of a model, at which it runs.

    Attributes:
        source: the model.
        said: sizes that are not to be changed, by name of the dimension.
        proposals: sizes of all open dimensions; the first ones at which it runs are taken.
        single: dimensions that should be 1: others are searched for beside them first.
    """

    result = SizesResult

    source: ModelSource
    said: Sizes
    proposals: tuple[Sizes, ...]
    single: tuple[str, ...] = ()

    def run(self, worker: WorkerContext) -> SizesResult:
        """Raises ModelError: no session can be made of it."""
        from epctx.graph.serde import skeleton
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
            trial.nodes = NodeOrder.of(skeleton.read(self.source.path))
            for asked in ({**dict.fromkeys(self.single, 1), **self.said}, self.said):
                search = Search(
                    inputs=model.inputs,
                    asked=asked,
                    attempt=trial.attempt,
                    start=next(iter(self.proposals), {}),
                    known=trial.nodes.sizes,
                )
                found = search.find()
                if found is not None:
                    return SizesResult(sizes=found, why=trial.first)
        except NotHere as error:
            return SizesResult(sizes=None, why=str(error))
        return SizesResult(sizes=None, why=trial.first)


class _Trial(Struct):
    """Run a source at sizes that may not fit it. `first`: what ONNX Runtime said first."""

    expected: Expected
    nodes: NodeOrder | None = None
    first: str = ""

    def runs(self, sizes: Sizes) -> bool:
        """Tell whether it runs at sizes."""
        why = self.expected.try_sizes(sizes)
        self.first = self.first or why or ""
        return why is None

    def attempt(self, sizes: Sizes) -> int | None:
        """Run it as `Attempt`. A session with optimizations has other names for its nodes, so one
        without runs first.
        """
        assert self.nodes is not None
        why = self.expected.try_sizes(sizes, optimized=False)
        if why is not None:
            return self.nodes.reached(why)
        return None if self.runs(sizes) else -1


class NodeOrder(Struct, frozen=True, kw_only=True):
    """The order of a model's nodes, for whoever hears at which of them a run failed.

    Attributes:
        names: by name, how many nodes come before it.
        op_types: by op type, how many come before the first of that type.
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
        """Return how many nodes ran before the one that failed; -1: the error does not say."""
        found = _FAILED.search(error)
        if found is None:
            return -1
        op_type, name = found.groups()
        return self.names.get(name, self.op_types.get(op_type, -1))


class Term(Struct, frozen=True):
    """The size of a dimension: a number, and the sizes of others that are added to it."""

    number: int = 0
    of: tuple[str, ...] = ()


Plan = Mapping[str, Term]
"""The terms of all open dimensions."""


class Search(Struct, kw_only=True):
    """Looks for sizes of one model.

    Attributes:
        inputs: some of whose dimensions are open.
        asked: sizes that are not to be changed, by name.
        attempt: runs the model.
        start: sizes to begin with, if there are some.
        known: sizes that occur in the model, the most frequent first.
    """

    inputs: Sequence[InputSpec]
    asked: Sizes
    attempt: Attempt
    start: Sizes = field(default_factory=dict)
    known: Sequence[int] = ()
    runs: int = 0
    _tried: dict[tuple[int, ...], int | None] = field(default_factory=dict)
    _deadline: float = 0.0

    def find(self) -> Sizes | None:
        """Return sizes of all open dimensions; None: it runs at none that a search may try."""
        self._deadline = time.monotonic() + limits.SIZE_SECONDS.value
        try:
            plan = self._first()
        except _Ended:
            return None
        return None if plan is None else dict(self._sizes(plan))

    def _first(self) -> Plan | None:
        starts = self._starts()
        reached = []
        for plan in starts:
            result = self._try(plan)
            if result is None:
                return plan
            reached.append(result)
        nearest = sorted(range(len(starts)), key=lambda place: -reached[place])
        for most in (_BRIEFLY, limits.SIZE_RUNS.value):
            for place in nearest:
                found = self._climb(starts[place], reached[place], most)
                if found is not None:
                    return found
        return None

    def _starts(self) -> list[Plan]:
        """Plans to begin with: `start`; all sizes differ; one sample; all are the same."""
        apart: dict[str, Term] = {}
        axes: dict[int, str] = {}
        sizes = iter((*_FIRST, *range(14, 14 + sum(len(spec.open) for spec in self.inputs))))
        for spec in self.inputs:
            for axis, name in spec.open.items():
                if name in apart:
                    continue
                # Dimensions without a name are the same along an axis until a run says otherwise.
                same = axes.setdefault(axis, name) if spec.shape[axis] is None else name
                apart[name] = Term(next(sizes)) if same == name else Term(of=(same,))
        totals = {name: term for name in apart if (term := total(name, apart)) is not None}
        begun: Plan = {**{name: Term(size) for name, size in self.start.items()}, **totals}
        apart |= totals
        alike: Plan = {name: Term(2) for name in apart}
        leading = {name for spec in self.inputs for axis, name in spec.open.items() if axis == 0}
        single = {**apart, **dict.fromkeys(leading, Term(1))}
        given = {name: Term(size) for name, size in self.asked.items()}
        return [
            {**plan, **given} for plan in (begun, apart, single, alike) if len(plan) == len(apart)
        ]

    def _climb(self, plan: Plan, reached: int, most: int) -> Plan | None:
        """Change the plan for one with which more nodes run, until all do.

        Returns:
            None: no change brings it further, or more than so many were tried since one did.
        """
        moved = True
        while moved:
            moved, before = False, self.runs
            for move in self._moves(plan):
                if self.runs - before > most:
                    return None
                changed = {**plan, **move}
                result = self._try(changed)
                if result is None:
                    return changed
                if result > reached:
                    plan, reached, moved = changed, result, True
                    break
        return None

    def _moves(self, plan: Plan) -> Iterator[Plan]:
        """Changes to try: what follows from others, likely sizes of one, larger and larger ones."""
        free = [name for name in plan if name not in self.asked]
        free.sort(key=lambda name: bool(plan[name].of))  # those that others follow come first
        for count in (1, 2):
            for name in free:
                others = [each for each in plan if each != name]
                yield from ({name: Term(of=each)} for each in combinations(others, count))
        yield {name: Term(1) for name in free}
        own = self.known[:_OF_THE_MODEL]
        for name in free:
            if not plan[name].of:
                yield from ({name: Term(size)} for size in dict.fromkeys((*own, *_SINGLE)))
        together = [*((name,) for name in free), *self._neighbours(free)]
        for size in dict.fromkeys((1, 2, 3, 4, *sorted(own), *_USUAL)):
            for names in together:
                move = dict.fromkeys(names, Term(size))
                yield move
                yield {**self._freed(plan, names), **move}
        for one, other in permutations(free, 2):
            yield from ({one: Term(a), other: Term(b)} for a, b in product(own, own))

    def _freed(self, plan: Plan, names: Sequence[str]) -> Plan:
        """The dimensions that follow these, at the sizes that they have."""
        sizes = self._sizes(plan)
        return {each: Term(sizes[each]) for each in plan if not {*names}.isdisjoint(plan[each].of)}

    def _neighbours(self, free: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Dimensions side by side, as a height and a width are."""
        pairs = (pair for spec in self.inputs for pair in pairwise(spec.open.values()))
        for one, other in dict.fromkeys(pairs):
            if one != other and one in free and other in free:
                yield one, other

    def _try(self, plan: Plan) -> int | None:
        sizes = self._sizes(plan)
        values = tuple(sizes.values())
        if min(values, default=1) < 1:
            return -1
        if values not in self._tried:
            if self.runs >= limits.SIZE_RUNS.value or time.monotonic() > self._deadline:
                raise _Ended
            self.runs += 1
            self._tried[values] = self.attempt(sizes)
        return self._tried[values]

    def _sizes(self, plan: Plan) -> Sizes:
        """What the terms come to; less than 0 where they go in a circle."""

        def size(name: str, within: frozenset[str]) -> int:
            term = plan[name]
            if name in within:
                return -1_000_000
            return term.number + sum(size(each, within | {name}) for each in term.of)

        return {name: max(size(name, frozenset()), -1) for name in plan}


class _Ended(Exception):
    """The search has taken all that it may."""


def total(name: str, names: Mapping[str, object]) -> Term | None:
    """Return what a name says of a size: `past + 1`, `total_length` beside a past and a length."""
    try:
        term = _linear(ast.parse(name.replace("_plus_", "+"), mode="eval").body, names)
    except (SyntaxError, ValueError, RecursionError):
        term = None
    if term is not None and term.of and name not in term.of:
        return term
    if "total" not in name:
        return None
    past = [each for each in names if "past" in each and "total" not in each]
    new = [each for each in names if "seq" in each and each not in past and "total" not in each]
    return Term(of=(past[0], new[0])) if len(past) == len(new) == 1 else None


def _linear(tree: ast.expr, names: Mapping[str, object]) -> Term | None:
    """A sum of names and numbers."""
    match tree:
        case ast.Name(id=name) if name in names:
            return Term(of=(name,))
        case ast.Constant(value=int(number)):
            return Term(number)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            one, other = _linear(left, names), _linear(right, names)
            if one is not None and other is not None:
                return Term(one.number + other.number, one.of + other.of)
        case ast.BinOp(left=left, op=ast.Sub(), right=ast.Constant(value=int(number))):
            one = _linear(left, names)
            return None if one is None else replace(one, number=one.number - number)
        case ast.BinOp(left=ast.Constant(value=int(number)), op=ast.Mult(), right=right):
            one = _linear(right, names)
            if one is not None and 0 < number < 64:
                return Term(one.number * number, one.of * number)
    return None
