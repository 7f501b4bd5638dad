"""Reference outputs of source models in stock sessions, and attribution of failures.

A source that runs on none of the tried inputs is faulty. A source that runs, but not on the
generated inputs, needs ranges in the manifest. A source that this host cannot run says nothing
about the EP.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from msgspec import Struct

from epctx.errors import ManifestError, ModelError
from epctx.files.outputs import context_file
from epctx.graph import soundness
from epctx.graph.epcontext import Cuts
from epctx.graph.inputs import Array, InputSpec
from epctx.graph.serde import reader
from epctx.inference import feeds as feeds_
from epctx.inference.feeds import Feeds
from epctx.manifest import ModelSource, VerifyInputs
from epctx.verification.findings import Finding
from epctx.verification.folder import ContextModel
from epctx.verification.numbers import (
    branches,
    headroom,
    recordings,
    sessions,
    sizes,
    source_model,
    unoptimized,
)
from epctx.verification.numbers.input_sets import Case, InputSets
from epctx.verification.numbers.pieces import Open, Pieces, Values
from epctx.verification.numbers.sizes import NotFound, Sizes
from epctx.verification.numbers.source_model import SourceModel
from epctx.verification.numbers.tasks import unchecked

_NO_KERNEL: Final = "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED"
"""Start of ONNX Runtime's error for a kernel that its CPU EP lacks."""
_NO_MEMORY: Final = re.compile(r"[Ff]ailed to allocate memory|bad.?alloc")


_Run = Callable[..., dict[str, Array]]
"""Runs a model on inputs, with the arguments of `Pieces.run`, in pieces or whole."""
_UNOPTIMIZED: Final = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
_CONSUMERS: Final = "inputs in the range of their consumers"
REPEATS: Final = 8
"""Number of runs that show whether an output of few elements is random."""
_MOST_ELEMENTS: Final = 1 << 24
"""Greatest number of elements of an input set at sizes that are tried."""
SIZES: Final = "sizes"
RANDOM: Final = "random"
REFUSAL: Final = "refusal"
COVERAGE: Final = "coverage"
"""Names of records beside a source's outputs: the sizes of its open dimensions, the names of random
outputs (after its first case was run), the finding that it cannot be run, and the finding about the
nodes that its inputs exercise.
"""
KERNELS: Final = "kernels"
REFERENCE: Final = "reference"
MAGNITUDES: Final = "magnitudes"
FURTHER: Final = "further"
"""Folders below a source: outputs of its own nodes without optimizations, outputs of its reference,
magnitudes of its values, and inputs of cases for nodes that its input sets do not exercise."""
ATTEMPTS: Final = (_CONSUMERS, "zeros", "ones")
"""Inputs to try on a model that refuses the generated ones."""


INFERENCE: Final = (
    "export the model for inference, without Dropout in training mode, and make what it draws at "
    "random an input"
)


class Unfed(Exception):
    """A source does not run on the generated inputs; the text says why, and on which inputs it
    does.
    """

    remedy: Final = "set `verify.inputs.ranges`, or give `verify.inputs.files` that it accepts"


class NotHere(Exception):
    """ONNX Runtime's CPU EP cannot run a source on this host: a kernel or memory is missing."""

    remedy: Final = "verify it where ONNX Runtime's CPU EP runs the source model"


class Unsized(Exception):
    """A source does not run at the tried sizes of its open dimensions; the text has the error."""

    def __init__(self, error: NotFound) -> None:
        super().__init__(
            f"its source model does not run at {sizes.words(error.sizes)} of its open dimensions: "
            f"{error.why}"
        )
        listed = ", ".join(f"{json.dumps(name)}: …" for name in error.sizes)
        self.remedy = (
            f"set `verify.inputs.dimensions: {{{listed}}}` with sizes that the model runs at "
            "(`epctx init` finds some), or give `verify.inputs.files`"
        )


class Expected(Struct, dict=True):
    """The right outputs of one model.

    Attributes:
        source: the model.
        inputs: its inputs, in its order; their shapes are fixed once `find_sizes` was called.
        sets: input sets of the model.
        alone: nothing is compiled at the same time.
        cuts: cuts between pieces, one of which is open at a time; None if the model runs whole.
        keep: folder in which `of` keeps the values of the pieces.
        ran: label of inputs that the model has run on; None if there were none.
    """

    source: SourceModel
    inputs: Sequence[InputSpec]
    sets: InputSets
    alone: bool = True
    cuts: Cuts | None = None
    keep: Values | None = None
    _session: _Run | None = None
    ran: str | None = None

    def find_sizes(self) -> tuple[Sizes, ...]:
        """Return sizes for the open dimensions of the inputs, at which the model runs.

        The first set fixes `inputs`. One empty set if inputs come from files, or no dimension is
        open.

        Raises:
            Unsized: the model does not run at these sizes.
            NotHere: this host cannot run the model.
            ModelError: no session of the model can be made.
        """
        try:
            size_sets = self.sets.sizes(self.inputs, self.try_sizes)
        except sizes.NotFound as error:
            raise Unsized(error) from error
        self.inputs = sizes.fixed(self.inputs, size_sets[0])
        return size_sets

    def try_sizes(self, at: Sizes, *, optimized: bool = True) -> str | None:
        """Run it at sizes of its open dimensions, on any values, as a `sizes.Runs`. Raises as
        `find_sizes`.

        Args:
            optimized: run a stock session; if False, the model's own nodes.
        """
        self._open()
        inputs = sizes.fixed(self.inputs, at)
        if sum(math.prod(int(dim or 0) for dim in spec.shape) for spec in inputs) > _MOST_ELEMENTS:
            return f"its inputs would have more than {_MOST_ELEMENTS:,} elements"
        try:
            feeds = self.sets.case(inputs, 0).feeds
            with contextlib.suppress(sessions.NotComparable):
                self.compute(feeds, optimized)
        except Exception as error:  # onnxruntime's errors have no common class
            return None if self.fallback(inputs) is not None else sessions.words(error)
        return None

    def of(self, case: Case) -> dict[str, Array]:
        """Return the outputs for an input set.

        Raises:
            NotComparable: an output has no numbers.
            Unfed: the model runs on other inputs only.
            NotHere: this host cannot run the model.
            ModelError: the model runs on none of the tried inputs.
        """
        self._open()
        try:
            outputs = self._run(case.feeds, self.keep)
        except sessions.NotComparable:
            raise
        except Exception as error:  # onnxruntime's errors have no common class
            _refuse_host(error)
            raise self._blame(case, error) from error
        self.ran = case.label
        return outputs

    def random(self, case: Case) -> frozenset[str]:
        """Return the outputs that differ when the kernels run again on an input set.

        No stock session is used: it removes some Dropouts of training (onnxruntime 1.31.1).
        """
        if not self.source.may_draw:
            return frozenset()
        try:
            return self._drawn(self._unoptimized, case)
        except Exception:  # the model may need an optimization; onnxruntime has no common error
            self._open()
            return self._drawn(self._run, case)

    def _drawn(self, run: _Run, case: Case) -> frozenset[str]:
        """Return the outputs that differ when it runs again. Since new sessions draw the same
        numbers, each piece runs once more in its session than before.
        """
        times = itertools.count(1)
        return drawn(lambda: run(case.feeds, times=next(times)))

    @cached_property
    def _unoptimized(self) -> _Run:
        """Function that runs the model's own nodes, without ONNX Runtime's optimizations."""
        return self._opened(level=_UNOPTIMIZED)

    def _opened(self, **options: Any) -> _Run:
        """Open a session of the model, as `open_source` does, and return a function that runs it.
        If the model is in pieces, each run opens one after the other.
        """
        open_: Open = partial(sessions.open_source, self.source.source, **options)
        if self.cuts is not None:
            return partial(self._pieces.run, open_)
        session = open_()
        return lambda feeds, *_, **__: sessions.run_source(session, feeds)

    @cached_property
    def _pieces(self) -> Pieces:
        assert self.cuts is not None
        return Pieces(self.source.source, self.cuts)

    def _open(self) -> None:
        """Open a session of the model. Raises NotHere, or ModelError if that fails."""
        if self._session is not None:
            return
        try:
            self._session = self._opened(spins=self.alone, prepacks=self.source.prepacks)
        except Exception as error:  # onnxruntime's errors have no common class
            _refuse_host(error)
            raise self._refused("ONNX Runtime refuses the source model", error) from error

    def _run(self, feeds: Feeds, *keep: Values | None, **how: Any) -> dict[str, Array]:
        assert self._session is not None
        return self._session(feeds, *keep, **how)

    def _blame(self, case: Case, error: Exception) -> Unfed | ModelError:
        """Return the error of an input set that does not run: it blames the inputs or the model."""
        if not self.sets.generated:
            return self._refused(f"the source model does not run on {case.label}", error)
        works = self.ran or self.fallback(self.inputs)
        if works is not None:
            why = sessions.words(error)
            return Unfed(f"the source model runs on {works}, not on {case.label}: {why}")
        tried = f"not on {case.label}, {', '.join(ATTEMPTS[:-1])} nor {ATTEMPTS[-1]}"
        return self._refused(f"the source model does not run: {tried}", error)

    def fallback(self, inputs: Sequence[InputSpec]) -> str | None:
        """Return the first of ATTEMPTS that the model runs on; None if it runs on none."""
        for attempt in ATTEMPTS:
            with contextlib.suppress(Exception):  # onnxruntime's errors have no common class
                self._run(_attempt(attempt, inputs))
                return attempt
        return None

    def compute(self, feeds: Feeds, optimized: bool) -> dict[str, Array]:
        """Return the outputs for any inputs. Raises as `of` does, or what ONNX Runtime raises.

        Args:
            optimized: run a stock session; if False, the model's own nodes.
        """
        if not optimized:
            return self._unoptimized(feeds)
        self._open()
        return self._run(feeds)

    def compute_piece(
        self, number: int, feeds: Feeds, optimized: bool, values: Values
    ) -> dict[str, Array]:
        """Return the outputs of one piece, and possibly of others: of its own nodes on kept values,
        or of all pieces in stock sessions. Raises what ONNX Runtime raises.
        """
        if optimized:
            self._open()
            return self._run(feeds, inner=True)
        open_ = partial(sessions.open_source, self.source.source, level=_UNOPTIMIZED)
        return self._pieces.run_one(open_, self._pieces.steps[number - 1], feeds, values)

    def _refused(self, what: str, error: Exception) -> ModelError:
        source = self.source.source
        remedy = "correct `dimensions` and `shapes`, the inputs, or the model"
        why = sessions.words(error)
        return ModelError(what, file=str(source.path), model=source.name, why=why, remedy=remedy)


def differing(outputs: Mapping[str, Array], again: Mapping[str, Array]) -> frozenset[str]:
    """Return the names of outputs that are not bit-identical when they are computed again."""
    return frozenset(
        name
        for name, value in outputs.items()
        if name not in again or not _same(value, again[name])
    )


def drawn(run: Callable[[], Mapping[str, Array]]) -> frozenset[str]:
    """Return the outputs that differ when `run` is repeated; few values need more runs."""
    once = run()
    few = any(value.size < 64 for value in once.values())
    return frozenset().union(*(differing(once, run()) for _ in range(REPEATS if few else 1)))


def tell_random(model: ContextModel, names: frozenset[str]) -> Iterator[Finding]:
    """Yield the finding that outputs are random, if any are; random outputs are not compared."""
    if names:
        listed = ", ".join(map(repr, sorted(names)))
        message = f"random: on the same inputs the source's kernels give other {listed} each time"
        yield unchecked(model, message, INFERENCE)


def _attempt(name: str, inputs: Sequence[InputSpec]) -> Feeds:
    if name == _CONSUMERS:
        return feeds_.generate(inputs, seed=0, index=0)
    return {spec.name: _filled(spec, ATTEMPTS.index(name) - 1) for spec in inputs}


class SourceRuns:
    """Runs a source model on the input sets of its group, one at a time, and keeps the outputs.

    A model is skipped if no inputs are possible, or if it is not the source of `built`;
    verification reports why.

    Args:
        source: the model.
        settings: settings of the inputs.
        folder: folder for the outputs (`Kept.source`).
        built: its EPContext model, whose fixed shapes count; None if it is not built yet.
        reference: run its reference in its place, on the same inputs; needs `built`.
        magnitudes: measure the magnitudes of its values, too (`headroom`).
        cuts: cuts between pieces. Values that cross are kept, too (`numbers.pieces`). Studies that
            need another form of the whole model are left out.

    Attributes:
        fed: the model is not skipped.
        ran: the last run was not skipped, and this host can run the model.

    Raises:
        ModelError: a model or an input file cannot be read.
        ManifestError: the reference has other inputs or outputs.
    """

    def __init__(
        self,
        source: ModelSource,
        settings: VerifyInputs,
        folder: Path,
        *,
        built: ContextModel | None = None,
        reference: bool = False,
        magnitudes: bool = False,
        cuts: Cuts | None = None,
    ) -> None:
        self._magnitudes = magnitudes and cuts is None
        self._cuts = cuts
        self._sets = InputSets(settings)
        self._folder = folder
        self._source = source
        self._reference = source.as_reference if reference else None
        self._name = f"{source.name}/{REFERENCE}" if reference else source.name
        self._sizes: Sequence[Sizes] | None = None
        self._inputs = source_model.inputs(source)
        self.fed = self.ran = False
        try:
            model = SourceModel.read(source)
        except ModelError:
            if built is None:
                raise
            return
        if built is not None:
            if model.interface_faults(built):
                return
            self._inputs = model.fixed_inputs(built)
        if self._reference is not None:
            assert built is not None
            model = SourceModel.read(self._reference)
            _refuse_other(self._reference, model.interface_faults(built))
        self.fed = not self._sets.problems(self._inputs)
        self._expected = Expected(
            model,
            self._inputs,
            self._sets,
            alone=built is not None,
            cuts=cuts,
            keep=Values(folder, self._name),
        )

    def run(self, index: int) -> str | None:
        """Run it on one input set. Index `count` is an additional set, which shows whether outputs
        depend on inputs if there is a single input set.

        Returns:
            Why it does not run on generated inputs; None if it does, or is not run.

        Raises:
            ModelError: it runs on none of the tried inputs.
            ManifestError: a range does not fit its input.
            StorageError: the disk refuses.
        """
        self.ran = self.fed
        try:
            size_sets = self._find_sizes() if self.fed else ()
        except (NotHere, Unsized) as error:
            self.ran = not isinstance(error, NotHere)
            recordings.keep(self._folder, self._name, REFUSAL, self._unchecked(error))
            return None
        if self._ran:
            self._expected.ran = self._expected.ran or "other inputs"
        regular = index < self._sets.count
        for case in self._cases(index, size_sets):
            try:
                if not recordings.has(self._folder, self._name, case.feeds):
                    outputs = self._expected.of(case)
                    recordings.write(self._folder, self._name, case.feeds, outputs)
            except (Unfed, NotHere, sessions.NotComparable) as error:
                self.ran = not isinstance(error, NotHere)
                recordings.fail(self._folder, self._name, case.feeds, self._unchecked(error))
                return str(error) if regular and isinstance(error, Unfed) else None
            if self._reference is None:
                self._study(case)
        if not regular and self._reference is None and size_sets:
            self._cover(size_sets)
        return None

    def _cases(self, index: int, size_sets: Sequence[Sizes]) -> Iterator[Case]:
        if not size_sets:
            return
        if index < self._sets.count:
            yield from self._sets.nth(self._inputs, index, size_sets)
        elif self._reference is None:
            another = self._sets.another(self._expected.inputs)
            yield from () if another is None else (another,)
        else:
            for first in itertools.islice(self._sets.cases(self._inputs, size_sets), 1):
                yield from further(self._folder, self._source.name, first)

    def _cover(self, size_sets: Sequence[Sizes]) -> None:
        """Record which nodes the input sets exercise, and run it on further sets for the others."""
        if self._cuts is not None:
            if branches.decides(reader.read(self._source.path), self._source):
                message = "it is not known which nodes the inputs exercise: it runs in pieces"
                note = self._not_checkable(
                    "coverage", message, "give inputs that take each of its branches"
                )
                recordings.keep(self._folder, self._name, COVERAGE, note)
            return
        ran = [
            case
            for case in self._sets.cases(self._inputs, size_sets)
            if recordings.has(self._folder, self._name, case.feeds)
        ]
        try:
            coverage, new = branches.reaching(
                self._source, self._expected.inputs, ran, more=self._sets.generated
            )
            for case in new:
                outputs = self._expected.of(case)
                recordings.write(self._folder, self._name, case.feeds, outputs)
                recordings.write(self._folder, f"{self._name}/{FURTHER}", case.feeds, case.feeds)
        except Exception as error:  # onnxruntime's errors have no common class
            message = f"it is not known which nodes the inputs exercise: {sessions.words(error)}"
            note = self._not_checkable("coverage", message, "report it with the model")
            recordings.keep(self._folder, self._name, COVERAGE, note)
            return
        labels = [(case.label, recordings.name_of(case.feeds)) for case in new]
        recordings.keep(self._folder, self._name, FURTHER, labels)
        if coverage is not None:
            note = branches.finding(context_file(self._source.name), coverage)
            recordings.keep(self._folder, self._name, COVERAGE, note)

    def _find_sizes(self) -> Sequence[Sizes]:
        """Find the sizes at which it is run, and keep them."""
        if self._sizes is None and (self._reference is not None or self._ran):
            self._sizes = read_sizes(self._folder, self._source.name)
            self._expected.inputs = sizes.fixed(self._inputs, self._sizes[0])
        if self._sizes is None:
            self._sizes = self._expected.find_sizes()
            if self._sizes[0]:
                recordings.keep(self._folder, self._name, SIZES, self._sizes)
        return self._sizes

    @property
    def _ran(self) -> bool:
        """Return whether the model has run on its first case, in this process or before."""
        return recordings.kept(self._folder, self._name, RANDOM, tuple[str, ...]) is not None

    def _study(self, case: Case) -> None:
        """Keep the names of random outputs, and the outputs of its kernels, for its first case."""
        if self._ran:
            return
        if self._magnitudes:
            with contextlib.suppress(Exception):  # onnxruntime's errors have no common class
                values = headroom.measure(self._source, case.feeds)
                place = f"{self._name}/{MAGNITUDES}"
                recordings.write(self._folder, place, case.feeds, values)
        at = (self._sizes or ({},))[-1]  # a Dropout of one element repeats its output
        widest = self._sets.case(self._inputs, 0, at) if at else case
        random = self._expected.random(widest)
        if self._expected.source.folds and not random:
            place = f"{self._name}/{KERNELS}"
            try:
                outputs = self._expected.compute(case.feeds, False)
            except Exception as error:  # onnxruntime's errors have no common class
                why = sessions.words(error)
                message = f"ONNX Runtime does not run it at ORT_DISABLE_ALL: {why}"
                note = self._not_checkable("source", message, unoptimized.REMEDY)
                recordings.fail(self._folder, place, case.feeds, note)
            else:
                recordings.write(self._folder, place, case.feeds, outputs)
        recordings.keep(self._folder, self._name, RANDOM, sorted(random))

    def _unchecked(self, error: Exception) -> Finding:
        remedy = "only tensors, sequences and maps can be compared"
        if isinstance(error, Unfed | NotHere | Unsized):
            remedy = error.remedy
        return self._not_checkable("outputs", str(error), remedy)

    def _not_checkable(self, check: str, message: str, remedy: str) -> Finding:
        file = context_file(self._source.name)
        return Finding("numbers", check, file, "not checkable", message, remedy)


def read_sizes(folder: Path, model: str) -> tuple[Sizes, ...]:
    """Return the sizes at which a source was run; one empty set if no dimension is open.

    Raises:
        StorageError: what was kept cannot be read.
    """
    return recordings.kept(folder, model, SIZES, tuple[Sizes, ...]) or ({},)


def further(folder: Path, model: str, first: Case) -> list[Case]:
    """Return the cases for nodes of a source that its input sets do not exercise.

    Args:
        folder: where its outputs are kept.
        first: its first case.

    Raises:
        StorageError: what was kept cannot be read.
    """
    cases = []
    labels = recordings.kept(folder, model, FURTHER, tuple[tuple[str, str], ...]) or ()
    for label, name in labels:
        feeds = recordings.named(folder, f"{model}/{FURTHER}", name)
        if feeds is not None:
            cases.append(Case(label=label, feeds=feeds, sizes=first.sizes))
    return cases


def _refuse_other(reference: ModelSource, faults: Sequence[str]) -> None:
    if faults:
        raise ManifestError(
            f"{reference.path.name} cannot be the reference of the model {reference.name}: "
            f"{'; '.join(faults)}",
            where=f"models.{reference.name}.reference",
            remedy="give a model with the same inputs and outputs, such as the unquantized one",
        )


def _refuse_host(error: Exception) -> None:
    """Raise NotHere if this host lacks a kernel or memory; any other error is the model's."""
    text = str(error)
    if text.startswith(_NO_KERNEL) or _NO_MEMORY.search(soundness.words(text)):
        raise NotHere(f"the source model itself does not run: {sessions.words(error)}") from error


def _filled(spec: InputSpec, value: int) -> Array:
    shape = tuple(int(dim) for dim in spec.shape if dim is not None)
    return np.full(shape, value, spec.dtype)


def _same(one: Array, other: Array) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tobytes() == other.tobytes() if one.dtype.kind != "O" else bool((one == other).all())
