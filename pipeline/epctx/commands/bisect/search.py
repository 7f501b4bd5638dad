"""Search for the first wrong layer: cut the model, build, compare."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import onnx
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from epctx.actions.action import Action
from epctx.actions.optimize import Optimize
from epctx.actions.quantize import Quantize
from epctx.engine import build, plan, ranges
from epctx.engine.actions import optimize
from epctx.engine.executor import Machines, Scheduler, one
from epctx.engine.lookup import QUANTIZED
from epctx.engine.options import BuildOptions
from epctx.engine.report import GroupReport
from epctx.errors import EpctxError
from epctx.files import outputs
from epctx.files.digest import Digest
from epctx.graph import dataflow, store
from epctx.graph.serde import canonical, data_files
from epctx.graph.serde.ordering import order
from epctx.manifest import Manifest, ModelGroup, Target
from epctx.quantization.ranges import Ranges, owners, parse
from epctx.verification.findings import OutputNumbers
from epctx.worker.pool import Pool, own_logs

_DATA: Final = "weights.data"
_FLOATS: Final = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
)


class Layer(Struct, frozen=True, kw_only=True, eq=False):
    """A node whose values can be read.

    Attributes:
        place: in the sequence of all layers, which is a topological order.
        values: those of its outputs that can be read.
        parents: places of the layers that it uses, also through nodes that are none.
    """

    place: int
    node: ir.Node
    values: tuple[str, ...]
    parents: frozenset[int]


class CutModel:
    """An optimized model that is written again and again with other outputs, its weights once.

    Args:
        optimized: the folder that Optimize wrote.
        folder: gets the models; exists.

    Attributes:
        nodes: those of the main graph, in a topological order.
        layers: those whose values can be read.
    """

    def __init__(self, optimized: Path, folder: Path) -> None:
        self._model = store.read(optimized).model
        self._folder = folder
        data = data_files.place(self._model, _DATA, keep=data_files.inference_may_read)
        if data is not None:
            outputs.write(folder / _DATA, data.chunks())
        self._values = {str(v.name): v for node in self._model.graph for v in node.outputs}
        self.nodes = tuple(order(self._model.graph).nodes)
        self.layers = tuple(_layers(self.nodes))

    def write(self, values: Collection[str]) -> Path:
        """The model with these values as outputs, too, those of the model first."""
        graph = self._model.graph
        own = tuple(graph.outputs)
        names = {value.name for value in own}
        path = self._folder / f"cut{len(list(self._folder.glob('cut*')))}.onnx"
        try:
            graph.outputs.extend(self._values[name] for name in values if name not in names)
            outputs.write(path, canonical.chunks(self._model))
        finally:
            del graph.outputs[len(own) :]
        return path


def _layers(nodes: Iterable[ir.Node]) -> Iterator[Layer]:
    made: dict[ir.Node, frozenset[int]] = {}
    count = 0
    for node in nodes:
        used = (*(v for v in node.inputs if v is not None), *dataflow.captured(node))
        producers = (value.producer() for value in used)
        parents = frozenset[int]().union(*(made.get(p, ()) for p in producers if p is not None))
        values = tuple(str(value.name) for value in node.outputs if _readable(value))
        made[node] = parents
        if values:
            yield Layer(place=count, node=node, values=values, parents=parents)
            made[node] = frozenset({count})
            count += 1


def _readable(value: ir.Value) -> bool:
    known = value.dtype in _FLOATS and value.shape is not None
    return bool(value.name) and (value.is_graph_output() or known)


T = TypeVar("T")
_MOST: Final = 4
"""Number of culprits that `smallest` searches one by one."""


@dataclass
class Search:
    """A search.

    Attributes:
        layers: of the model, in topological order.
        at_once: how many of them are read at a time.
        known: of values that were read, whether they are right.
    """

    layers: Sequence[Layer]
    at_once: int
    known: dict[str, bool] = field(default_factory=dict)

    @property
    def wrong(self) -> Layer | None:
        """The first layer that is known to be wrong."""
        return next((layer for layer in self.layers if self._right(layer) is False), None)

    def suspects(self) -> list[Layer]:
        """Unread layers before the wrong one; empty if the wrong one is the first."""
        wrong = self.wrong
        if wrong is None:
            return []
        before = self._before(wrong.parents)
        cleared = self._before(each.place for each in self.layers if self._right(each))
        unknown = [place for place in sorted(before) if self._right(self.layers[place]) is None]
        likely = [place for place in unknown if place not in cleared]
        left = likely or [place for place in unknown if place in wrong.parents]
        return [self.layers[place] for place in left]

    def values(self) -> tuple[str, ...]:
        """Layers to read next; none if the wrong layer is the first wrong one."""
        left, most = self.suspects(), self.at_once
        if len(left) > most:
            left = [left[(number + 1) * len(left) // (most + 1)] for number in range(most)]
        return tuple(value for layer in left for value in layer.values)

    def rounds(self) -> int:
        """Estimate of the readings that remain: each leaves one stretch between them."""
        left, count = len(self.suspects()), 0
        while left:
            left, count = left // (self.at_once + 1), count + 1
        return count

    def _right(self, layer: Layer) -> bool | None:
        found = [self.known.get(value) for value in layer.values]
        return False if False in found else None if None in found else True

    def _before(self, places: Iterable[int]) -> set[int]:
        """Extend a set of places by all places before them."""
        found: set[int] = set()
        left = list(places)
        while left:
            place = left.pop()
            if place not in found:
                found.add(place)
                left.extend(self.layers[place].parents)
        return found


def smallest(
    items: Sequence[T], passes: Callable[[Sequence[T]], bool], kind: Callable[[T], object]
) -> list[T]:
    """Return the fewest items that must be left out; none if leaving out a few does not help.

    Each culprit takes about log2(n) + 1 trials. Of more than four all items of their kinds count.

    Args:
        items: in an order that keeps neighbours together; all of them left out pass.
        passes: whether a trial without these items succeeds.
        kind: of an item, by which several are left out together.
    """
    known = {(): False, tuple(items): True}

    def good(some: Iterable[T]) -> bool:
        chosen = set(some)
        out = tuple(item for item in items if item in chosen)
        if out not in known:
            known[out] = passes(out)
        return known[out]

    left = list(items)
    while len(left) > 1:  # if one item does it, each trial tells its half
        half = left[: len(left) // 2]
        left = half if good(half) else left[len(half) :]
    if good(left):
        return left
    kinds = {kind(item): item for item in items}
    if not any(good(set(items) - {one}) for one in list(kinds.values())[:_MOST]):
        return []  # whatever is left alone fails
    culprits: list[T] = []
    left = list(items)
    while not good(culprits) and len(culprits) < _MOST:
        low, high = 0, len(left)  # without the culprits and the first `high` it passes
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if good([*culprits, *left[:middle]]) else (middle, high)
        culprits.append(left[high - 1])
        left = left[: high - 1]
    if good(culprits):
        return culprits
    every = [item for item in items if kind(item) in set(map(kind, culprits))]
    return every if good(every) else []


R = TypeVar("R")
_OPTIMIZED: Final = "optimized"


class Spent(Exception):
    """The budget is used up."""


@dataclass(kw_only=True)
class Trials:
    """Successive builds of which only the numbers are kept.

    Attributes:
        known: the manifest whose calibrated ranges hold, too.
        deadline: by `time.monotonic`; no build but the first begins later. None: there is none.
        count: how many there were.
    """

    known: Manifest
    target: str
    folder: Path
    deadline: float | None = None
    count: int = field(default=0, init=False)
    _optimized: Digest | None = field(default=None, init=False)

    def build(self, group: ModelGroup) -> tuple[OutputNumbers, ...]:
        """The numbers of a build, within the tolerance or not.

        Raises:
            EpctxError: it failed before there were numbers.
            Spent: there is no time for it.
        """
        report, failure = self.run(group)
        numbers = report.verify.numbers if report.verify is not None else ()
        if failure is not None and all(each.passed for each in numbers):
            if str(self.folder) not in failure.remedy:
                raise failure
            advice = failure.remedy.rpartition("; its log: ")[0]  # the log goes with the build
            again = f"{advice}; `epctx build` keeps its log".removeprefix("; ")
            raise type(failure).of(failure.failure, remedy=again)
        return numbers

    def run(self, group: ModelGroup) -> tuple[GroupReport, EpctxError | None]:
        """Build, and return the outcome. Raises Spent if no time is left."""
        if self.count and self.deadline is not None and time.monotonic() >= self.deadline:
            raise Spent
        self.count += 1
        target = Target(name=self.target, groups=(group,), written={group.name: {}})
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
            made = Manifest(name="bisect", path=Path(folder, "m.yaml"), targets=(target,))
            there = ranges.place(self.known.path)
            if there.exists():
                shutil.copy(there, ranges.place(made.path))
            options, machines = BuildOptions(out=Path(folder, "dist"), jobs=1), Machines(Pool)
            report, failure = build.run(
                plan.make(made), options, listener=lambda event: None, machines=machines
            )
        return report.groups[0], failure

    def optimize(self, group: ModelGroup) -> Path:
        """The group's only model, optimized: its folder."""
        folder = self.folder / _OPTIMIZED
        job = Optimize.of(group.models[0], group.optimize, folder)
        self._optimized = optimize.run(job, self._carried_out).digest
        return folder

    def calibrate(self, group: ModelGroup) -> Ranges:
        """The ranges that the group's only model is quantized with, of tensors that have their own;
        none: it is not.
        """
        if group.quantize is None or not group.quantize.calibrated:
            return {}
        assert self._optimized is not None
        job = replace(
            Quantize.of(group, self._optimized, (), None),
            name=group.models[0].name,
            optimized=self.folder / _OPTIMIZED,
            folder=self.folder / "quantized",
        )
        result = self._carried_out(job)
        owned = owners(onnx.load(job.folder / QUANTIZED, load_external_data=False))
        every = parse(result.ranges or "{}").items()
        found = {name: both for name, both in every if owned.get(name, ("", 0))[0] == name}
        given = {name: each.range for name, each in group.quantize.overrides.items()}
        return {**found, **{name: both for name, both in given.items() if both is not None}}

    def _carried_out(self, job: Action[R]) -> R:
        pool = Pool(work=self.folder / f"work-{type(job).__name__}", logs=own_logs())
        with Scheduler(pool), pool.lease(None) as lease:
            return one(lease, job)
