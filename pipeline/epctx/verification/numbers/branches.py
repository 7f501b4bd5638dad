"""Branch coverage: nodes of a source that its input sets exercise, and input sets for the others.

An input that selects a branch has one value in an input set, so errors in the other branch stay
hidden. So the source runs once more on ONNX Runtime's CPU EP, and counts how often each arm of an
If, Where, Loop or Scan was taken, at any depth.

A node is exercised if it runs, and arms that were taken lead from it to an output. As in line
coverage, each arm is judged by itself: two arms that different elements or different iterations
took make a path. Min, Max, Clip, Relu and a multiplication by zero do not count as branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import onnx
import onnxruntime as ort
from msgspec import Struct
from onnx import numpy_helper

from epctx.graph import decisions
from epctx.graph.decisions import Key, Program
from epctx.graph.inputs import Array, InputSpec
from epctx.graph.prepare import functions
from epctx.graph.serde import protos, reader
from epctx.inference import feeds as feeds_
from epctx.inference.feeds import Feeds
from epctx.manifest import ModelSource
from epctx.verification.findings import NOT_CHECKED, Finding
from epctx.verification.numbers import sessions
from epctx.verification.numbers.input_sets import Case

Number = float | bool
_Change = tuple[str, Callable[[Feeds], Feeds]]
"""Label of a change of an input set, and the function that makes the change."""

_NAMED: Final = 4
"""Greatest number of nodes that a message names."""
_TRIALS: Final = 256
"""Greatest number of runs of the instrumented source in a search for input sets."""
_LARGEST: Final = 1 << 31
_LONGEST: Final = 4096
"""The largest integers that are tried: for any model, and for one in which they may count loops."""
_CONSTANTS: Final = 16
"""Greatest number of a comparison's constants that are tried."""
_NUMERIC: Final = frozenset("biuf")
"""Kinds of numpy's types whose constants are tried."""
_VALUES: Final = 64
"""Greatest number of values that are tried for an operand of arithmetic."""
_SAME: Final = frozenset(
    ("Cast", "CastLike", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile")
) | {"Transpose", "Unsqueeze"}
"""Ops whose outputs have the values of their first input."""
_PASSING: Final = _SAME.union(
    ("Abs", "Ceil", "Clip", "Floor", "Gather", "GatherElements", "GatherND", "Mod", "Round"),
    ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Slice", "Split"),
)
"""Ops whose outputs have about the values of their first input if its values are similar."""
_REPEATING: Final = frozenset({"Loop", "Scan"})
_COMPARING: Final = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_JOINING: Final = frozenset({"Concat", "Max", "Min", "Where"})
"""Ops whose outputs have values of any of their inputs."""


class Coverage(Struct, frozen=True, kw_only=True):
    """Nodes of a source that input sets exercise.

    Attributes:
        nodes: number of nodes that any input can exercise, also in bodies and local functions.
            Constants, folded nodes and dead code do not count (`decisions.Program.reachable`).
        unreached: names of the nodes that no input set exercises, in graph order. For a node
            without a name: its operator and first output.
        taken: arms that each input set took.
    """

    nodes: int
    unreached: tuple[str, ...]
    taken: tuple[frozenset[int], ...]

    def words(self) -> str:
        """Return the share of exercised nodes, rounded down: `97 % of 233 nodes exercised`."""
        reached = self.nodes - len(self.unreached)
        share = 100 * reached // self.nodes if self.nodes else 100
        return f"{share} % of {self.nodes} node{'' if self.nodes == 1 else 's'} exercised"


def decides(model: onnx.ModelProto, source: ModelSource) -> bool:
    """Return whether inputs of a source may decide which nodes count; nothing is run.

    Args:
        model: the source, without its large weights (`reader.read`).
        source: its sizes. An If, Loop or Scan that depends on the size of an open batch decides,
            too.

    Raises:
        ModelError: local functions cannot be inlined.
    """
    if not any(node.op_type in decisions.OPS for node in protos.nodes(model)):
        return False
    inlined = functions.inlined(model, where=str(source.path))
    program = Program(inlined, _batches(inlined, source))
    return bool(program.open or program.sized)


def measure(source: ModelSource, feeds: Sequence[Feeds]) -> Coverage:
    """Return the common coverage of input sets. No session is made for a source without arms.

    Raises:
        ModelError: the source cannot be read, or local functions cannot be inlined. Errors of ONNX
            Runtime, which have no common class, pass through.
    """
    probe = _Probe(source)
    return probe.coverage([probe.taken(each) for each in feeds])


def further(
    source: ModelSource, inputs: Sequence[InputSpec], first: Feeds, coverage: Coverage
) -> list[tuple[str, Feeds]]:
    """Return further input sets for arms that no input set took, each with a label of its changes.

    Each set is `first` with other values for inputs that decide, by themselves or in comparisons
    with constants, and runs on the source. An open batch may become 1. The sets are as few as
    possible: changes that do not interfere share a set. There are none if no arm is missed, or no
    input is known to help.

    Args:
        source: the model.
        inputs: its inputs.
        first: the input set to change.
        coverage: coverage of all input sets so far, `first` among them.

    Raises:
        As `measure`.
    """
    return _further(_Probe(source), inputs, first, coverage)


def _further(
    probe: _Probe, inputs: Sequence[InputSpec], first: Feeds, coverage: Coverage
) -> list[tuple[str, Feeds]]:
    program = probe.program
    every = frozenset(range(program.arms))
    deciding = (*program.open, *program.sized)
    missed = program.effective(every).intersection(arm for node in deciding for arm in node.arms)
    missed = missed.difference(*map(program.effective, coverage.taken))
    # A second iteration matters where a node counts only from then on.
    again = {arm for node in deciding if node.kind in _REPEATING for arm in node.arms[1:]}
    nodes = program.reach(every) if again else set()
    missed -= {arm for arm in again & missed if program.reach(every - {arm}) == nodes}
    if not missed:
        return []
    choices = [*_smaller(probe.batches, first), *_values(probe, missed, inputs, first)]
    bases: list[tuple[dict[str, str], Feeds]] = [({}, first)]
    for base in bases:  # `bases` grows: an arm may need the arms of another set
        while missed and (new := _combined(probe, choices, *base, missed)) is not None:
            missed -= probe.attempt(new[1])
            bases.append(new)
    return [(", ".join(labels.values()), feeds) for labels, feeds in bases[1:]]


def _combined(
    probe: _Probe,
    choices: Sequence[Sequence[_Change]],
    labels: Mapping[str, str],
    feeds: Feeds,
    missed: frozenset[int],
) -> tuple[dict[str, str], Feeds] | None:
    """Return an input set with the changes that take the most missed arms, and labels by input."""
    new_labels = dict(labels)
    new: frozenset[int] = frozenset()
    for changes in choices:
        trials: list[tuple[frozenset[int], str, Feeds]] = []
        for name, change in changes:
            trial = change(feeds)
            trials.append((missed & probe.attempt(trial), name, trial))
            if trials[-1][0] == missed:
                break
        # A change that hides an arm of another change belongs in another set.
        more = [each for each in trials if each[0] > new]
        for taken, name, trial in sorted(more, key=lambda each: -len(each[0])):
            if probe.runs(trial):
                new_labels[name.partition("=")[0]] = name
                feeds, new = trial, taken
                break
    return (new_labels, feeds) if new else None


def reaching(
    source: ModelSource, inputs: Sequence[InputSpec], cases: Sequence[Case], *, more: bool
) -> tuple[Coverage | None, list[Case]]:
    """Return the coverage of a source by cases, and further cases for its other nodes.

    Args:
        inputs: inputs of the source.
        cases: cases that the source runs on.
        more: further cases may be made.

    Returns:
        The coverage by all cases, None if no input decides; and the new cases.

    Raises:
        As `measure`.
    """
    if not cases or not decides(reader.read(source.path), source):
        return None, []
    first, probe = cases[0], _Probe(source)
    coverage = probe.coverage([probe.taken(case.feeds) for case in cases])
    further_sets = _further(probe, inputs, first.feeds, coverage) if more else []
    new = [
        Case(label=f"{first.label}, {label}", feeds=feeds, sizes=first.sizes)
        for label, feeds in further_sets
    ]
    return probe.coverage([*coverage.taken, *(probe.taken(case.feeds) for case in new)]), new


def finding(file: str, coverage: Coverage) -> Finding:
    """Return the finding about the coverage by a model's input sets.

    Args:
        file: the EPContext model.
    """
    if not coverage.unreached:
        return Finding("numbers", "coverage", file, "pass", coverage.words())
    count, more = len(coverage.unreached), len(coverage.unreached) - _NAMED
    listed = ", ".join(map(repr, coverage.unreached[:_NAMED]))
    listed += f" and {more} more" if more > 0 else ""
    message = (
        f"{NOT_CHECKED}no input set reaches {count} of its nodes: {listed} ({coverage.words()})"
    )
    remedy = (
        "give input sets that reach them: `verify.inputs.files`, or `verify.inputs.ranges` of the "
        "inputs that decide"
    )
    return Finding("numbers", "coverage", file, "not checkable", message, remedy)


class _Probe:
    """A source, its decisions, and its sessions."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.model = functions.inlined(sessions.mapped(source), where=str(source.path))
        self.batches = _batches(self.model, source)
        self.program = Program(self.model, self.batches)
        self._attempts: dict[str, frozenset[int]] = {}

    @cached_property
    def _counting(self) -> ort.InferenceSession:
        changed = decisions.instrumented(self.model).SerializeToString()
        level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return sessions.open_source(
            self.source, spins=False, prepacks=False, level=level, changed=changed, silent=True
        )

    @cached_property
    def _stock(self) -> ort.InferenceSession:
        return sessions.open_source(self.source, spins=False, silent=True)

    def taken(self, feeds: Feeds) -> frozenset[int]:
        """Return the arms that an input set takes. Raises as `measure`."""
        if not self.program.arms:
            return frozenset()
        counts = sessions.run_source(self._counting, feeds)[decisions.ARMS]
        return frozenset(np.flatnonzero(counts).tolist())

    def attempt(self, feeds: Feeds) -> frozenset[int]:
        """Return the effective arms of an input set; none if it does not run, or after _TRIALS."""
        digest = feeds_.digest(feeds)
        if digest not in self._attempts and len(self._attempts) < _TRIALS:
            try:
                self._attempts[digest] = self.program.effective(self.taken(feeds))
            except Exception:  # onnxruntime's errors have no common class
                self._attempts[digest] = frozenset()
        return self._attempts.get(digest, frozenset())

    def runs(self, feeds: Feeds) -> bool:
        """Tell whether the source itself runs on an input set."""
        try:
            sessions.run_source(self._stock, feeds)
        except sessions.NotComparable:
            return True
        except Exception:  # onnxruntime's errors have no common class
            return False
        return True

    def coverage(self, taken: Sequence[frozenset[int]]) -> Coverage:
        """Return the coverage by input sets that took these arms."""
        nodes = self.program.reachable(frozenset().union(*taken))
        missed = nodes.difference(*map(self.program.reach, taken))
        names = (self.program.nodes[place].proto for place in sorted(missed))
        unreached = tuple(
            node.name or f"{protos.op(node)} {next(filter(None, node.output), '')}".rstrip()
            for node in names
        )
        return Coverage(nodes=len(nodes), unreached=unreached, taken=tuple(taken))


def _batches(model: onnx.ModelProto, source: ModelSource) -> dict[str, str]:
    """Return the names of open batches (sizes of first axes), by input."""
    batches: dict[str, str] = {}
    for value in model.graph.input:
        batch = next(protos.dimensions(value.type), None)
        if batch is not None and batch.dim_value <= 0 and value.name not in source.shapes:
            name = protos.symbol(batch) or f"{value.name}[0]"
            if name not in source.dimensions:
                batches[value.name] = name
    return batches


def _smaller(batches: Mapping[str, str], first: Feeds) -> Iterator[list[_Change]]:
    """Yield a change to batch 1 for each open batch that is larger."""
    for batch in dict.fromkeys(batches.values()):
        names = [name for name, own in batches.items() if own == batch and name in first]
        if any(len(first[name]) > 1 for name in names):

            def cut(feeds: Feeds, names: Sequence[str] = tuple(names)) -> Feeds:
                return feeds | {name: feeds[name][:1] for name in names}

            yield [(f"{batch}=1", cut)]


def _values(
    probe: _Probe, missed: frozenset[int], inputs: Sequence[InputSpec], first: Feeds
) -> Iterator[list[_Change]]:
    """Yield changes to the values of each input that is known to decide."""
    tracer = _Tracer(probe)
    for node in probe.program.open:
        if not missed.isdisjoint(node.arms) and node.kind != "Scan":
            trips = node.scope.key(node.proto.input[0]) if node.kind == "Loop" else None
            for key in node.deciders:
                tracer.trace(key, (2, 1) if key == trips else (True, False))
    loops = any(node.kind == "Loop" for node in probe.program.nodes)
    for spec in inputs:
        array = first.get(spec.name)
        if array is None or array.dtype.kind in "OUSc" or spec.name not in tracer.wanted:
            continue
        values = [
            value
            for each in tracer.wanted[spec.name]
            if (value := _fitting(each, array.dtype, _LONGEST if loops else _LARGEST)) is not None
            # An integer divided by 0 ends the process.
            and (value or spec.hint is None or spec.hint.low <= 0)
        ]
        halves = [_filling(spec.name, value, array, half=True) for value in dict.fromkeys(values)]
        whole = [_filling(spec.name, value, array, half=False) for value in dict.fromkeys(values)]
        yield [*(halves if array.size > 1 else []), *whole]


def _fitting(value: Number, dtype: np.dtype[np.generic], largest: int) -> Number | None:
    """Return a value in an input's type; None if the type cannot hold it, or it is too large."""
    if dtype.kind == "b":
        return bool(value)
    if dtype.kind not in "iu":
        return float(value) if np.isfinite(np.asarray(value).astype(dtype)) else None
    bounds = np.iinfo(dtype.name)
    number = round(value) if math.isfinite(value) else largest + 1
    return number if max(bounds.min, -largest) <= number <= min(bounds.max, largest) else None


def _filling(name: str, value: Number, like: Array, *, half: bool) -> _Change:
    """Return a change of an input to one value; if `half`, only of half of its last axis."""

    def change(feeds: Feeds) -> Feeds:
        array = feeds[name].copy()
        axis = max((axis for axis, size in enumerate(array.shape) if size > 1), default=0)
        place = [slice(None)] * array.ndim
        if half and array.ndim:
            place[axis] = slice((array.shape[axis] + 1) // 2, None)
        array[tuple(place)] = np.asarray(value).astype(like.dtype)
        return feeds | {name: array}

    return f"{name}={value}" + (" in part" if half else ""), change


class _Tracer:
    """Finds inputs that decide, and values that may change the decisions.

    Attributes:
        wanted: values to try, by input.
    """

    def __init__(self, probe: _Probe) -> None:
        self.wanted: dict[str, dict[Number, None]] = {}
        self._program = probe.program
        self._folder = sessions.data_folder(probe.source)
        self._seen: set[tuple[Key, tuple[Number, ...]]] = set()

    def trace(self, key: Key, wanted: tuple[Number, ...]) -> None:
        """Follow a value back to inputs through simple operators.

        Args:
            key: the value.
            wanted: values that it should have.
        """
        if (key, wanted) in self._seen:
            return
        self._seen.add((key, wanted))
        node = self._program.makers.get(key)
        if node is None:
            self._enter(key, wanted)
            return
        op = node.proto.op_type
        inputs = [node.scope.key(name) for name in node.proto.input]
        operands = [None if each is None else self._numbers(each) for each in inputs]
        for place, source in enumerate(inputs):
            if source is None or operands[place] is not None:
                continue
            other = operands[1 - place] if len(inputs) == 2 else None
            if op in _COMPARING:
                self.trace(source, _around(other) if other else (-1, 0, 1, 2))
            elif op in ("And", "Not", "Or", "Xor"):
                self.trace(source, (True, False))
            elif op in _INVERSE and other:
                inverse = _INVERSE[op][place]
                by = [each for each in other[:_CONSTANTS] if each or op in ("Add", "Sub")]
                values = (inverse(value, each) for each in by for value in wanted)
                self.trace(source, tuple(dict.fromkeys(values))[:_VALUES])
            elif (op in _PASSING and place == 0) or op in _JOINING:
                self.trace(source, wanted)

    def _enter(self, key: Key, wanted: tuple[Number, ...]) -> None:
        """Follow an input of a body to the input of its node; note an input of the model."""
        scope, name = self._program.scopes[key[0]], key[1]
        if scope.owner is None:
            if name in self._program.inputs:
                self.wanted.setdefault(name, {}).update(dict.fromkeys(wanted))
            return
        place = [value.name for value in scope.graph.input].index(name)
        counts = scope.owner.kind == "Loop" and place == 0  # the number of the iteration
        source = scope.owner.scope.key(scope.owner.proto.input[place])
        if source is not None:
            self.trace(source, tuple(value + 1 for value in wanted) if counts else wanted)

    def _numbers(self, key: Key) -> list[Number] | None:
        """Return the distinct values of a constant; None if it is not constant, or has too many."""
        node, tensor = self._program.makers.get(key), None
        if node is None:
            own = self._program.scopes[key[0]].graph.initializer
            tensor = next((each for each in own if each.name == key[1]), None)
        elif node.proto.op_type == "Constant":
            (attribute,) = node.proto.attribute
            if attribute.name == "value":
                tensor = attribute.t
            elif attribute.name.startswith("value_"):
                value = np.atleast_1d(onnx.helper.get_attribute_value(attribute))
                return list(value.tolist()) if value.dtype.kind in _NUMERIC else None
        elif node.proto.op_type in _SAME:
            source = node.scope.key(node.proto.input[0])
            return None if source is None else self._numbers(source)
        if tensor is None or math.prod(tensor.dims) > 4096:
            return None
        try:
            values = numpy_helper.to_array(tensor, str(self._folder))
        except (OSError, TypeError, ValueError):
            return None
        if values.dtype.kind not in _NUMERIC:
            return None
        return list(dict.fromkeys(values.reshape(-1).tolist()))


def _around(numbers: Sequence[Number]) -> tuple[Number, ...]:
    """Return constants of a comparison, and values on both sides of each."""
    around: dict[Number, None] = {}
    for number in numbers[:_CONSTANTS]:
        if isinstance(number, bool):
            around |= {True: None, False: None}
        else:
            step = 1 if isinstance(number, int) else max(1.0, abs(number) / 8)
            around |= dict.fromkeys((number, number - step, number + step))
    return tuple(around)


_INVERSE: Final[Mapping[str, Sequence[Callable[[Number, Number], Number]]]] = {
    "Add": (lambda value, by: value - by, lambda value, by: value - by),
    "Sub": (lambda value, by: value + by, lambda value, by: by - value),
    "Mul": (lambda value, by: value / by, lambda value, by: value / by),
    "Div": (lambda value, by: value * by, lambda value, by: by / value if value else by * 2),
}
"""By operator and place of an operand: its value, from the result and the other operand."""
