"""Sizes for the dimensions that a model leaves open, so that it can be run and compared.

They are those of `verify.inputs.dimensions`; the others are searched for: small ones at which the
source model runs. Which sizes fit each other no model says (a total that is a past and a sequence,
an image as wide as high, as many channels as a filter has), so it is tried. A search begins with
sizes that all differ, which most models take, and goes on from where a run failed: of two attempts
the one is nearer that ran more nodes.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise, permutations, product
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from epctx import limits
from epctx.graph.inputs import InputSpec

Sizes = Mapping[str, int]
"""Of open dimensions, by their names (`InputSpec.open`)."""
Attempt = Callable[[Sizes], int | None]
"""Runs a model at these sizes: None if it runs, else how many of its nodes did."""

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


class NotFound(Exception):
    """No sizes were found.

    Attributes:
        runs: how many attempts were made.
        first: the sizes of the first one.
        limited: a limit ended the search.
    """

    def __init__(self, runs: int, first: Sizes, *, limited: bool) -> None:
        super().__init__(runs)
        self.runs, self.first, self.limited = runs, first, limited


class Term(Struct, frozen=True):
    """The size of a dimension: a number, and the sizes of others that are added to it."""

    number: int = 0
    of: tuple[str, ...] = ()


Plan = Mapping[str, Term]
"""The terms of all open dimensions."""


def open_names(inputs: Sequence[InputSpec]) -> tuple[str, ...]:
    """The open dimensions of a model's inputs, each once, in order."""
    return tuple(dict.fromkeys(name for spec in inputs for name in spec.open.values()))


def fixed(inputs: Sequence[InputSpec], sizes: Sizes) -> tuple[InputSpec, ...]:
    """The inputs at sizes of their open dimensions."""
    return tuple(spec.fixed(sizes) for spec in inputs)


def words(sizes: Sizes) -> str:
    """Sizes for people: `batch=2, sequence=5`."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


class Search(Struct, kw_only=True):
    """Looks for sizes of one model.

    Attributes:
        inputs: some of whose dimensions are open.
        asked: sizes that are asked for, by name: of the first set of sizes, of the second, ...; the
            last one holds for all that follow.
        attempt: runs the model.
        known: sizes that occur in the model, the most frequent first.
    """

    inputs: Sequence[InputSpec]
    asked: Mapping[str, Sequence[int]]
    attempt: Attempt
    known: Sequence[int] = ()
    runs: int = 0
    _tried: dict[tuple[int, ...], int | None] = field(default_factory=dict)
    _deadline: float = 0.0

    def find(self) -> tuple[Sizes, ...]:
        """Two sets of sizes, or as many as are asked for; one where the model runs at no other.

        Raises:
            NotFound: none at which it runs.
        """
        self._deadline = time.monotonic() + limits.SIZE_SECONDS.value
        count = max(map(len, self.asked.values()), default=1)
        limited = False
        try:
            plan = self._first()
        except _Ended:
            plan, limited = None, True
        if plan is None:
            raise NotFound(self.runs, self._sizes(self._starts()[0]), limited=limited)
        found = [plan]
        try:
            if count == 1:
                found += self._another(plan)
            for number in range(1, count):
                found += self._at(plan, number)
        except _Ended:
            pass
        return tuple(dict(self._sizes(each)) for each in found)

    @property
    def names(self) -> tuple[str, ...]:
        """The open dimensions."""
        return open_names(self.inputs)

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
        """Plans to begin with: all sizes differ; all are the same; one sample; and nothing past."""
        apart: dict[str, Term] = {}
        axes: dict[int, str] = {}
        sizes = iter((*_FIRST, *range(14, 14 + len(self.names))))
        for spec in self.inputs:
            for axis, name in spec.open.items():
                if name in apart:
                    continue
                # Dimensions without a name are the same along an axis until a run says otherwise.
                same = axes.setdefault(axis, name) if spec.shape[axis] is None else name
                apart[name] = Term(next(sizes)) if same == name else Term(of=(same,))
        apart |= {name: term for name in apart if (term := _total(name, apart)) is not None}
        alike: Plan = {name: Term(2) for name in apart}
        leading = {name for spec in self.inputs for axis, name in spec.open.items() if axis == 0}
        single = {**apart, **dict.fromkeys(leading, Term(1))}
        past = [name for name in apart if "past" in name and not apart[name].of]
        first = {**single, **dict.fromkeys(past, Term(0))}
        given = {name: Term(sizes_[0]) for name, sizes_ in self.asked.items()}
        return [{**plan, **given} for plan in (apart, single, first, alike)]

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

    def _another(self, plan: Plan) -> list[Plan]:
        """The plan with as many other sizes as the model takes; nothing if it takes none."""
        roots = [name for name, term in plan.items() if not term.of and name not in self.asked]
        for grown in (_next, _double):
            changed = {**plan, **{name: Term(grown(plan[name].number)) for name in roots}}
            if roots and self._try(changed) is None:
                return [changed]
        other = plan
        for name in roots:
            size = plan[name].number
            for each in (size + 1, 2 * size, 4 * size, 1):
                changed = {**other, name: Term(each)}
                if each != size and self._try(changed) is None:
                    other = changed
                    break
        return [] if other is plan else [other]

    def _at(self, plan: Plan, number: int) -> list[Plan]:
        """The plan at the asked sizes of a further set; nothing if it does not run at them."""
        given = {
            name: Term(sizes[min(number, len(sizes) - 1)]) for name, sizes in self.asked.items()
        }
        changed = {**plan, **given}
        if self._try(changed) is None:
            return [changed]
        return self._another(changed)

    def _try(self, plan: Plan) -> int | None:
        sizes = self._sizes(plan)
        values = tuple(sizes.values())
        if min(values, default=0) < 0:
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


def _next(size: int) -> int:
    return size + 1


def _double(size: int) -> int:
    return 2 * size


def _total(name: str, names: Mapping[str, object]) -> Term | None:
    """What a name says of a size: `past + 1`, or `total_length` beside a past and a length."""
    try:
        term = _linear(ast.parse(name, mode="eval").body, names)
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
