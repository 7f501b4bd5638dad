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
    """Node with outputs that can be read.

    Attributes:
        place: index in the sequence of all layers, which is a topological order.
        values: names of its readable outputs.
        parents: places of the layers that feed it, directly or through nodes that are not layers.
    """

    place: int
    node: ir.Node
    values: tuple[str, ...]
    parents: frozenset[int]


class CutModel:
    """Optimized model that is written many times with other outputs; its weights are written once.

    Args:
        optimized: output folder of the Optimize action.
        folder: existing folder for the models.

    Attributes:
        nodes: nodes of the main graph, in topological order.
        layers: the nodes with readable outputs.
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
        """Write the model with these values as outputs after its own; return the path."""
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
    places: dict[ir.Node, frozenset[int]] = {}
    count = 0
    for node in nodes:
        inputs = (*(v for v in node.inputs if v is not None), *dataflow.captured(node))
        producers = (value.producer() for value in inputs)
        parents = frozenset[int]().union(*(places.get(p, ()) for p in producers if p is not None))
        values = tuple(str(value.name) for value in node.outputs if _readable(value))
        places[node] = parents
        if values:
            yield Layer(place=count, node=node, values=values, parents=parents)
            places[node] = frozenset({count})
            count += 1


def _readable(value: ir.Value) -> bool:
    comparable = value.dtype in _FLOATS and value.shape is not None
    return bool(value.name) and (value.is_graph_output() or comparable)


T = TypeVar("T")
_MOST: Final = 4
"""Number of culprits that `smallest` searches one by one."""


@dataclass
class Search:
    """State of the search for the first wrong layer.

    Attributes:
        layers: layers of the model, in topological order.
        at_once: number of layers read in one build.
        passed: values that were read, by name; True if the value is right.
    """

    layers: Sequence[Layer]
    at_once: int
    passed: dict[str, bool] = field(default_factory=dict)

    @property
    def wrong(self) -> Layer | None:
        """First layer that is known to be wrong; None if none is known."""
        return next((layer for layer in self.layers if self._right(layer) is False), None)

    def suspects(self) -> list[Layer]:
        """Unread layers that may be the first wrong one; empty if the first is known.

        Layers before a right layer are suspects only if there are no others and they feed the wrong
        layer.
        """
        wrong = self.wrong
        if wrong is None:
            return []
        before = self._before(wrong.parents)
        cleared = self._before(each.place for each in self.layers if self._right(each))
        unknown = [place for place in sorted(before) if self._right(self.layers[place]) is None]
        likely = [place for place in unknown if place not in cleared]
        suspects = likely or [place for place in unknown if place in wrong.parents]
        return [self.layers[place] for place in suspects]

    def values(self) -> tuple[str, ...]:
        """Values of the layers to read next; empty if the first wrong layer is known."""
        suspects, most = self.suspects(), self.at_once
        if len(suspects) > most:
            suspects = [
                suspects[(number + 1) * len(suspects) // (most + 1)] for number in range(most)
            ]
        return tuple(value for layer in suspects for value in layer.values)

    def rounds(self) -> int:
        """Estimate how many rounds of reading remain; each round leaves one stretch of suspects."""
        remaining, count = len(self.suspects()), 0
        while remaining:
            remaining, count = remaining // (self.at_once + 1), count + 1
        return count

    def _right(self, layer: Layer) -> bool | None:
        verdicts = [self.passed.get(value) for value in layer.values]
        return False if False in verdicts else None if None in verdicts else True

    def _before(self, places: Iterable[int]) -> set[int]:
        """Return the places and all places before them."""
        before: set[int] = set()
        pending = list(places)
        while pending:
            place = pending.pop()
            if place not in before:
                before.add(place)
                pending.extend(self.layers[place].parents)
        return before


def smallest(
    items: Sequence[T], passes: Callable[[Sequence[T]], bool], kind: Callable[[T], object]
) -> list[T]:
    """Return the fewest items to leave out so that a trial passes; empty if a few do not help.

    Each culprit takes about log2(n) + 1 trials. If there are more than four culprits, return all
    items of the kinds of the four that were found.

    Args:
        items: all items, neighbours next to each other; a trial that leaves out all of them passes.
        passes: tells whether a trial that leaves out these items passes.
        kind: returns the kind of an item; items of one kind can be left out together.
    """
    results = {(): False, tuple(items): True}

    def good(some: Iterable[T]) -> bool:
        chosen = set(some)
        out = tuple(item for item in items if item in chosen)
        if out not in results:
            results[out] = passes(out)
        return results[out]

    remaining = list(items)
    while len(remaining) > 1:  # if one item is enough, each trial finds its half
        half = remaining[: len(remaining) // 2]
        remaining = half if good(half) else remaining[len(half) :]
    if good(remaining):
        return remaining
    kinds = {kind(item): item for item in items}
    if not any(good(set(items) - {one}) for one in list(kinds.values())[:_MOST]):
        return []  # leaving out all items but one kind's still fails
    culprits: list[T] = []
    remaining = list(items)
    while not good(culprits) and len(culprits) < _MOST:
        low, high = 0, len(remaining)  # leaving out the culprits and the first `high` passes
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if good([*culprits, *remaining[:middle]]) else (middle, high)
        culprits.append(remaining[high - 1])
        remaining = remaining[: high - 1]
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
    """Successive builds; only their numbers are kept.

    Attributes:
        manifest: the user's manifest; trials use its calibrated ranges.
        deadline: `time.monotonic` time after which only a first build may still start; None for no
            limit.
        count: number of builds so far.
    """

    manifest: Manifest
    target: str
    folder: Path
    deadline: float | None = None
    count: int = field(default=0, init=False)
    _optimized: Digest | None = field(default=None, init=False)

    def build(self, group: ModelGroup) -> tuple[OutputNumbers, ...]:
        """Build, and return the numbers, including those beyond the tolerance.

        Raises:
            EpctxError: the build failed for another reason than wrong numbers.
            Spent: the budget is used up.
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
            manifest = Manifest(name="bisect", path=Path(folder, "m.yaml"), targets=(target,))
            stored_ranges = ranges.place(self.manifest.path)
            if stored_ranges.exists():
                shutil.copy(stored_ranges, ranges.place(manifest.path))
            options, machines = BuildOptions(out=Path(folder, "dist"), jobs=1), Machines(Pool)
            report, failure = build.run(
                plan.make(manifest), options, listener=lambda event: None, machines=machines
            )
        return report.groups[0], failure

    def optimize(self, group: ModelGroup) -> Path:
        """Optimize the group's only model, and return the output folder."""
        folder = self.folder / _OPTIMIZED
        job = Optimize.of(group.models[0], group.optimize, folder)
        self._optimized = optimize.run(job, self._carried_out).digest
        return folder

    def calibrate(self, group: ModelGroup) -> Ranges:
        """Calibrate the group's only model; return the ranges of tensors that have their own.

        The result is empty if the group has no calibrated quantization.
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
        calibrated = {name: range_ for name, range_ in every if owned.get(name, ("", 0))[0] == name}
        overrides = {name: each.range for name, each in group.quantize.overrides.items()}
        return {
            **calibrated,
            **{name: range_ for name, range_ in overrides.items() if range_ is not None},
        }

    def _carried_out(self, job: Action[R]) -> R:
        pool = Pool(work=self.folder / f"work-{type(job).__name__}", logs=own_logs())
        with Scheduler(pool), pool.lease(None) as lease:
            return one(lease, job)
