"""What is right: the outputs of a source model in a stock session, and who is to blame without.

A build runs the sources while their EP compiles (`keep`), and verification takes what was kept. A
source that runs on none of the inputs that are tried is no model; one that runs on others than were
generated lacks ranges; one that this host cannot run says nothing of the EP.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime as ort
from msgspec import Struct

from epctx.errors import ModelError
from epctx.graph.checks import judge
from epctx.graph.inputs import Array, InputSpec
from epctx.manifest import ModelSource, VerifySettings
from epctx.runtime import feeds as feeds_
from epctx.runtime import values
from epctx.runtime.feeds import Feeds
from epctx.verification.findings import Finding
from epctx.verification.folder import ContextModel
from epctx.verification.numbers import recordings, sessions, sizes, source_model
from epctx.verification.numbers.input_sets import Case, InputSets
from epctx.verification.numbers.runs import Budget
from epctx.verification.numbers.sizes import NotFound, Sizes
from epctx.verification.numbers.source_model import SourceModel
from epctx.verification.numbers.tasks import unchecked

_NO_KERNEL: Final = "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED"
"""Start of the errors for kernels that ONNX Runtime's CPU EP lacks."""
_NO_MEMORY: Final = re.compile(r"[Ff]ailed to allocate memory|bad.?alloc")


_CONSUMERS: Final = "inputs in the range of their consumers"
_MOST_ELEMENTS: Final = 1 << 24
"""Of an input set at sizes that are tried."""
ATTEMPTS: Final = (_CONSUMERS, "zeros", "ones")
"""Inputs on which many a model runs that refuses others."""


INFERENCE: Final = (
    "export the model for inference, without Dropout in training mode, and make what it draws at "
    "random an input"
)


class Unfed(Exception):
    """A source runs, but not on the inputs that were generated for it; says why, and on which."""

    remedy: Final = "set `verify.inputs.ranges`, or give `verify.inputs.files` that it accepts"


class NotHere(Exception):
    """A source that ONNX Runtime's CPU EP does not run on this host, whoever is to blame."""

    remedy: Final = "verify it where ONNX Runtime's CPU EP runs the source model"


class Unsized(Exception):
    """A source does not run at sizes of the dimensions that it leaves open; says what it told."""

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
        inputs: in the order of the model; of fixed shapes once `find_sizes` has been asked.
        sets: which inputs it is run on.
        kept: where `keep` has put outputs; None: nowhere.
        alone: nothing is compiled meanwhile.
    """

    source: SourceModel
    inputs: Sequence[InputSpec]
    sets: InputSets
    kept: Path | None = None
    alone: bool = True
    _session: ort.InferenceSession | None = None
    _ran: str | None = None

    def find_sizes(self) -> tuple[Sizes, ...]:
        """Sizes for the open dimensions of its inputs, at which it runs; `inputs` are fixed by the
        first. One empty set where it is fed from files, or nothing is open.

        Raises:
            Unsized: it does not run at them.
            NotHere: this host cannot run it.
            ModelError: no session can be made of it.
        """
        name = self.source.source.name
        found = None if self.kept is None else recordings.read_sizes(self.kept, name)
        try:
            found = found or self.sets.sizes(self.inputs, self.try_sizes)
        except sizes.NotFound as error:
            raise Unsized(error) from error
        self.inputs = sizes.fixed(self.inputs, found[0])
        return found

    def try_sizes(self, at: Sizes, *, optimized: bool = True) -> str | None:
        """Run it at sizes of its open dimensions, on any values: as `sizes.Runs`; raises as
        `find_sizes`.

        Args:
            optimized: whether a stock session runs, or the model's own nodes.
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
        """The outputs for an input set.

        Raises:
            NotComparable: an output has no numbers.
            Unfed: others of the inputs that are tried it runs on.
            NotHere: this host cannot run it.
            ModelError: it runs on no input that is tried, or not at all.
        """
        name = self.source.source.name
        found = None if self.kept is None else recordings.read(self.kept, name, case.feeds)
        if found is not None:
            self._ran = case.label
            return {output: found[output] for output in sorted(found, key=self._place)}
        self._open()
        try:
            outputs = self._run(case.feeds)
        except sessions.NotComparable:
            raise
        except Exception as error:  # onnxruntime's errors have no common class
            _refuse_host(error)
            raise self._blame(case, error) from error
        self._ran = case.label
        return outputs

    def random(self, case: Case) -> frozenset[str]:
        """The outputs that differ from themselves when the kernels run twice on an input set.

        Not a stock session, which leaves out some Dropouts of training (onnxruntime 1.31.1).
        """
        if not self.source.may_draw:
            return frozenset()
        try:
            one, two = (sessions.run_source(self.unoptimized, case.feeds) for _ in range(2))
        except Exception:  # onnxruntime's errors have no common class; it needs an optimization
            self._open()
            one, two = (self._run(case.feeds) for _ in range(2))
        return differing(one, two)

    @cached_property
    def unoptimized(self) -> ort.InferenceSession:
        """A session that runs the model's own nodes."""
        return sessions.open_source(
            self.source.source, level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        )

    def _open(self) -> None:
        """Raises NotHere; ModelError: no session can be made of it."""
        if self._session is not None:
            return
        try:
            self._session = sessions.open_source(
                self.source.source, spins=self.alone, prepacks=self.source.prepacks
            )
        except Exception as error:  # onnxruntime's errors have no common class
            _refuse_host(error)
            raise self._refused("ONNX Runtime refuses the source model", error) from error

    def _run(self, feeds: Feeds) -> dict[str, Array]:
        assert self._session is not None
        return sessions.run_source(self._session, feeds)

    def _blame(self, case: Case, error: Exception) -> Unfed | ModelError:
        """Whose fault it is that an input set does not run: the model's, or the inputs'."""
        if not self.sets.generated:
            return self._refused(f"the source model does not run on {case.label}", error)
        works = self._ran or self.fallback(self.inputs)
        if works is not None:
            why = sessions.words(error)
            return Unfed(f"the source model runs on {works}, not on {case.label}: {why}")
        tried = f"not on {case.label}, {', '.join(ATTEMPTS[:-1])} nor {ATTEMPTS[-1]}"
        return self._refused(f"the source model does not run: {tried}", error)

    def fallback(self, inputs: Sequence[InputSpec]) -> str | None:
        """On which of ATTEMPTS it runs; None: on none."""
        for attempt in ATTEMPTS:
            with contextlib.suppress(Exception):  # onnxruntime's errors have no common class
                self._run(_attempt(attempt, inputs))
                return attempt
        return None

    def compute(self, feeds: Feeds, optimized: bool) -> dict[str, Array]:
        """Return the outputs for any inputs. Raises as `of` does, or what ONNX Runtime raises.

        Args:
            optimized: whether a stock session runs, or the model's own nodes.
        """
        if not optimized:
            return sessions.run_source(self.unoptimized, feeds)
        self._open()
        return self._run(feeds)

    def _refused(self, what: str, error: Exception) -> ModelError:
        source = self.source.source
        remedy = "correct `dimensions` and `shapes`, the inputs, or the model"
        why = sessions.words(error)
        return ModelError(what, file=str(source.path), model=source.name, why=why, remedy=remedy)

    def _place(self, output: str) -> int:
        """Where an output, or the sequence or map that it is of, stands among the model's."""
        names = self.source.outputs
        if output in names:
            return names.index(output)
        places = (i for i, own in enumerate(names) if values.suffix(output, own) is not None)
        return next(places, len(names))


def differing(outputs: Mapping[str, Array], again: Mapping[str, Array]) -> frozenset[str]:
    """The names of outputs that are not the same, to the bit, when they are computed once more."""
    return frozenset(
        name
        for name, value in outputs.items()
        if name not in again or not _same(value, again[name])
    )


def tell_random(model: ContextModel, names: frozenset[str]) -> Iterator[Finding]:
    """That outputs are random, if any are: what differs from itself is held against nobody."""
    if names:
        listed = ", ".join(map(repr, sorted(names)))
        message = f"random: on the same inputs the source's kernels give other {listed} each time"
        yield unchecked(model, message, INFERENCE)


def _attempt(name: str, inputs: Sequence[InputSpec]) -> Feeds:
    if name == _CONSUMERS:
        return feeds_.generate(inputs, seed=0, index=0)
    return {spec.name: _filled(spec, ATTEMPTS.index(name) - 1) for spec in inputs}


def keep(
    sources: Sequence[ModelSource], settings: VerifySettings, folder: Path
) -> Iterator[tuple[str, str | None]]:
    """Run models on the input sets that verification will use, and keep what they give.

    A model is passed over for which no inputs can be made, or whose outputs verification computes
    itself: verification says why. What it draws at random is not kept.

    Args:
        folder: where the outputs are kept (`verification.numbers.recordings`), and the sizes of
            open dimensions.

    Returns:
        Model by model its name, before it is run, with None; once more, with the reason, if it does
        not run on the inputs that were generated.

    Raises:
        ModelError: a source does not run, or cannot be read; an input file cannot be read.
        ManifestError: a range does not fit its input.
        StorageError: the disk refuses.
    """
    sets = InputSets(settings.inputs)
    budget = Budget(settings.budget)
    for source in sources:
        inputs = source_model.inputs(source)
        if sets.problems(inputs):
            continue
        yield source.name, None
        model = SourceModel.read(source)
        expected = Expected(model, inputs, sets, alone=False)
        try:
            found = expected.find_sizes()
        except (NotHere, Unsized):
            continue
        if found[0]:
            recordings.write_sizes(folder, source.name, found)
        another = sets.another(expected.inputs)
        for case in (*sets.cases(inputs, found), *([] if another is None else [another])):
            if budget.used_up:
                return
            try:
                outputs = expected.of(case)
            except (NotHere, sessions.NotComparable):
                break
            except Unfed as error:
                if case is not another:
                    yield source.name, str(error)
                break
            if model.may_draw:
                break
            recordings.write(folder, source.name, case.feeds, outputs)


def _refuse_host(error: Exception) -> None:
    """Raise NotHere if this host lacks a kernel or memory; the model is to blame for all else."""
    said = str(error)
    if said.startswith(_NO_KERNEL) or _NO_MEMORY.search(judge.words(said)):
        raise NotHere(f"the source model itself does not run: {sessions.words(error)}") from error


def _filled(spec: InputSpec, value: int) -> Array:
    shape = tuple(int(dim) for dim in spec.shape if dim is not None)
    return np.full(shape, value, spec.dtype)


def _same(one: Array, other: Array) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tobytes() == other.tobytes() if one.dtype.kind != "O" else bool((one == other).all())
