"""Numbers: the source model on ONNX Runtime's CPU EP against the EPContext model, same inputs.

Models that share a context are loaded together, in the order of the sharing group, and destroyed in
reverse order (spec/ep-context-design.md, "Session Cleanup Best Practices").
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from epctx.errors import ManifestError
from epctx.graph.inputs import InputSpec
from epctx.manifest import VerifySettings
from epctx.runtime.feeds import assumed
from epctx.verification import layout
from epctx.verification.findings import (
    GENERATED,
    NOT_CHECKED,
    REBUILD,
    Finding,
    OutputNumbers,
    PolicyName,
    Sessions,
)
from epctx.verification.folder import ContextModel, GroupFolder
from epctx.verification.numbers import (
    boundaries,
    headroom,
    nonfinite,
    recordings,
    sessions,
    sizes,
    tolerances,
    unoptimized,
)
from epctx.verification.numbers.again import Again
from epctx.verification.numbers.expected import (
    Expected,
    NotHere,
    Unfed,
    Unsized,
    tell_random,
)
from epctx.verification.numbers.judge import Judge
from epctx.verification.numbers.recordings import Variant
from epctx.verification.numbers.runs import (
    Budget,
    Found,
    Outputs,
    Pause,
    Run,
    Runs,
    Started,
    constant,
    unheard,
    unpaused,
)
from epctx.verification.numbers.sizes import Sizes
from epctx.verification.numbers.source_model import SourceModel
from epctx.verification.numbers.tasks import (
    Impossible,
    Preparation,
    Task,
    broken,
    finding,
    unchecked,
)

_NOT_GENERATING: Final = (
    "it has open dimensions, and the generating sessions were not run",
    "set `verify.numbers: full`, or fix `dimensions` and `shapes` of the model",
)
_ON_DEVICE: Final = "verify it on the device"
_ALIKE: Final = (
    "made for it alone, and the graphs have the same names, tensors, types and order there; that "
    "they compute the same only the device can tell"
)


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Every output of every model, on every input set; fields as in `VerifyRequest`.

    What is not run is loaded at least, once: a build must not publish what no session takes.
    """

    recorded: Path | None = None
    computed: Path | None = None
    passed: frozenset[str] = frozenset()
    spent: float = 0.0
    started: Started = unheard
    pausing: Callable[[Pause], None] = unpaused
    name: PolicyName = field(default="numbers", init=False)

    def check(self, folder: GroupFolder, earlier: Sequence[Finding]) -> Iterator[Found]:
        """Run the models of the folder.

        Raises:
            ModelError: a source does not run; an input file of the manifest cannot be read, or a
                source model gives NaN or infinities on it.
            ManifestError: an input file or a range fits no model.
        """
        group = folder.group
        if group is not None and group.verify.numbers != "off":
            preparation = Preparation(folder, group.verify.inputs, earlier)
            budget = Budget(group.verify.budget, spent=self.spent, pausing=self.pausing)
            kept = (self.recorded, self.computed)
            run = _Run(folder, self.started, budget, earlier, group.verify, *kept, preparation)
            wanted = [
                models
                for models in layout.sharing_sets(folder)
                if not all(model.file in self.passed for model in models)
            ]
            run.left.update((model.file, model) for models in wanted for model in models)
            for models in wanted:
                yield from run.sharing_set(models)
            if folder.whole:
                preparation.refuse_unused_inputs()
            return
        reason = "no source: only the manifest says which model it was made from"
        remedy = "give the manifest with --manifest"
        if group is not None:
            reason = "the manifest says `numbers: off`"
            remedy = "set `verify.numbers` to full or generating"
        runs = _Loads(folder, self.started, Budget(None), earlier)
        for models in layout.sharing_sets(folder):
            for model in models:
                yield unchecked(model, reason, remedy)
            if not all(model.file in self.passed for model in models):
                yield from runs.files(models, {})


@dataclass
class _Loads(Runs):
    """Files of a folder, loaded all of them. `earlier`: what the policies before found."""

    earlier: Sequence[Finding]

    def files(self, models: Sequence[ContextModel], runs: Mapping[str, Run]) -> Iterator[Found]:
        """Load a sharing set together, and run those of `runs`, by file; not what is broken."""
        sound = [model for model in models if broken(model, self.earlier) is None]
        chosen = [runs.get(model.file) or Run.load(model) for model in sound]
        return self.run(chosen, sharing=len(models) > 1)


@dataclass
class _Run(_Loads):
    """The numbers of one folder. `ran`: files whose numbers were found in them."""

    settings: VerifySettings
    recorded: Path | None
    computed: Path | None
    preparation: Preparation
    ran: set[str] = field(default_factory=set)

    def sharing_set(self, models: Sequence[ContextModel]) -> Iterator[Found]:
        """Models that share a context, or one that shares with nobody."""
        tasks: list[Task] = []
        for model in models:
            try:
                task = self.preparation.task(model)
            except Impossible as error:
                yield error.finding
                continue
            yield finding(model, "interface", "pass", "its inputs and outputs are its source's")
            self.budget.pause(Pause(model=task.source.source.name, rest=self.untold()))
            yield from self._compute_expected(task)
            if task.expected:
                tasks.append(task)
        with ThreadPoolExecutor(1) as beside:  # a simulator takes one core
            notes = [beside.submit(list, self._headroom(task)) for task in tasks]
            for task in tasks:
                yield from self._check_recorded(task)
            yield from self._check_files(models, tasks if self.settings.numbers == "full" else ())
            for task in tasks:
                yield from self._refusal(task)
            for each in notes:
                yield from each.result()

    def _headroom(self, task: Task) -> Iterator[Finding]:
        """Values of the source near or beyond the end of the type that its EPs compute in."""
        providers = self.folder.providers.of(task.model.sources)
        asked = self.settings.tolerance
        end = tolerances.limits(providers, "float32", "float32", asked).saturates_at
        if end is None:
            return
        try:
            compiled, feeds = self.folder.load(task.model), task.cases[0].feeds
            for message, remedy in headroom.notes(task.source.source, compiled, feeds, end):
                yield finding(task.model, "headroom", "pass", message, remedy)
        except Exception as error:  # onnxruntime's errors have no common class
            yield finding(task.model, "headroom", "pass", f"not measured: {sessions.words(error)}")

    def _compute_expected(self, task: Task) -> Iterator[Found]:
        """The right outputs: those of the source model in a stock session."""
        expected = Expected(task.source, task.inputs, self.preparation.inputs, self.computed)
        try:
            found = expected.find_sizes()
            self.preparation.feed(task, found)
            yield from _told(task, found)
            if self.preparation.inputs.generated and expected.inputs:
                words = assumed(expected.inputs, self.settings.inputs.ranges)
                yield finding(task.model, GENERATED, "pass", f"generated: {words}")
            for case in task.cases:
                if self.budget.used_up:
                    break
                self.budget.pause(Pause(model=task.source.source.name, rest=self.untold()))
                task.expected.append(expected.of(case))
        except Impossible as error:
            yield error.finding
        except (Unfed, NotHere, Unsized) as error:
            left_out = NOT_CHECKED if task.expected else ""
            yield unchecked(task.model, f"{left_out}{error}", error.remedy)
        except sessions.NotComparable as error:
            yield unchecked(
                task.model, str(error), "only tensors, sequences and maps can be compared"
            )
        else:
            for case, outputs in task.ready:
                nonfinite.refuse(task.source.source, self.settings, case.label, outputs)
            for case in task.cases[len(task.expected) :]:
                yield self.budget.finding(task.model, case)
        if task.expected and not self.budget.used_up:
            cases = {case.label: case for case in task.cases}
            task.again = Again(Expected(task.source, task.inputs, expected.sets).compute, cases)
            task.random = expected.random(task.cases[0])
            yield from tell_random(task.model, task.random)
            if task.source.folds and not task.random:
                yield from self._compare_answers(task, expected)
            yield from self._sensitivity(task, expected)
            yield from self._compute_reference(task, expected.inputs)

    def _compare_answers(self, task: Task, expected: Expected) -> Iterator[Finding]:
        """Where ONNX Runtime gives two answers, what its kernels compute is right."""
        case, stock = next(task.ready)
        try:
            kernels = expected.unoptimized
            outputs = sessions.run_source(kernels, case.feeds)
        except Exception as error:  # onnxruntime's errors have no common class
            message = f"ONNX Runtime does not run it at ORT_DISABLE_ALL: {sessions.words(error)}"
            yield finding(task.model, "source", "not checkable", message, unoptimized.REMEDY)
            return
        difference = unoptimized.difference(stock, outputs, self._judge(task, "files").limits)
        if difference is None:
            message = "ONNX Runtime gives it one answer, with and without its optimizations"
            yield finding(task.model, "source", "pass", message)
            return
        task.expected[:] = (
            outputs if each is case else sessions.run_source(kernels, each.feeds)
            for each, _ in task.ready
        )
        yield unoptimized.two_answers(task.model.file, case.label, difference)

    def _compute_reference(self, task: Task, inputs: Sequence[InputSpec]) -> Iterator[Found]:
        """What another model gives that the manifest names beside the source."""
        asked = task.source.source.as_reference
        if asked is None:
            return
        source = SourceModel.read(asked)
        faults = source.interface_faults(task.model)
        if faults:
            raise ManifestError(
                f"{asked.path.name} is no reference of the model {asked.name}: {'; '.join(faults)}",
                where=f"models.{asked.name}.reference",
                remedy="give a model with the same inputs and outputs: what a quantizer was given",
            )
        reference = Expected(source, inputs, self.preparation.inputs)
        try:
            task.reference = {case.label: reference.of(case) for case, _ in task.ready}
        except (Unfed, NotHere) as error:
            yield unchecked(task.model, f"not against its reference: {error}", error.remedy)
        except sessions.NotComparable as error:
            remedy = "only tensors, sequences and maps can be compared"
            yield unchecked(task.model, f"not against its reference: {error}", remedy)
        else:
            yield from self._check_quantized(task, reference)

    def _check_quantized(self, task: Task, reference: Expected) -> Iterator[Found]:
        """What this build has quantized, against the float model: whatever is compiled of it."""
        asked = task.source.source.reference
        if asked is None or not asked.of_source:
            return
        judge = self._judge(task, "quantized")
        judge = replace(
            judge,
            precision="quantized",
            asked=asked.tolerance,
            right="the float model",
            known=task.reference,
            again=Again(reference.compute, {case.label: case for case in task.cases}),
        )
        for case, outputs in task.ready:
            yield from judge.judge(case.label, task.reference[case.label], outputs)
        yield from judge.summary()
        task.reference.clear()

    def _sensitivity(self, task: Task, expected: Expected) -> Iterator[Finding]:
        """A comparison that cannot fail must not look like one that has passed."""
        results: list[Outputs] = [
            {n: value for n, value in outputs.items() if n not in task.random and value.size}
            for case, outputs in task.ready
            if case.sizes == task.cases[0].sizes
        ]
        other = self.preparation.inputs.another(expected.inputs)
        if other is not None:
            with contextlib.suppress(Unfed):
                results.append(expected.of(other))
        if len(results) < 2 or not expected.inputs or not results[0]:
            return
        task.idle = constant(results)
        if not task.idle:
            yield finding(task.model, "sensitivity", "pass", "its outputs depend on the inputs")
            return
        names = tuple(results[0])
        listed = ", ".join(repr(name) for name in names if name in task.idle)
        which = "its outputs" if len(task.idle) == len(names) else f"of its outputs, {listed}"
        yield finding(
            task.model,
            "sensitivity",
            "not checkable",
            f"{which} do not depend on the inputs: comparing them cannot fail",
            "verify a model with real weights, or give inputs that reach its outputs with "
            "`verify.inputs`; of many classes a quantized Softmax gives zeros only",
        )

    def _check_recorded(self, task: Task) -> Iterator[Found]:
        """What the generating sessions computed, against what is right."""
        if self.recorded is None:
            if self.settings.numbers == "generating":
                yield unchecked(
                    task.model,
                    "no generating session: its EPs compile without one, or it is not being built",
                    "set `verify.numbers: full` to load and run the files",
                )
            return
        if recordings.refusal(self.recorded, task.source.source.name) is not None:
            return
        if task.cases[0].sizes:
            if self.settings.numbers == "generating":
                yield unchecked(task.model, *_NOT_GENERATING)
            return
        for variant in recordings.read_variants(self.recorded, task.source.source.name):
            yield from self._check_variant(task, self.recorded, variant)

    def _check_variant(self, task: Task, recorded: Path, variant: Variant) -> Iterator[Found]:
        refusal = recordings.refusal(recorded, variant.place) if variant.name else None
        if not variant.begun:
            message = f"{variant.name}: {NOT_CHECKED}budget"
            yield unchecked(task.model, message, "raise `verify.budget`")
            return
        if refusal is not None:
            yield unchecked(task.model, f"{variant.name}: {NOT_CHECKED}{refusal}", _ON_DEVICE)
            return
        yield from self._check_boundaries(task, recorded, variant)
        judge = self._judge(task, "generating", variant.name)
        for case, expected in task.ready:
            found = recordings.read(recorded, variant.place, case.feeds)
            if found is None and self.settings.budget is not None:
                yield self.budget.finding(task.model, case)
            elif found is None:
                yield unchecked(
                    task.model,
                    f"{case.label}: {NOT_CHECKED}the generating sessions ran other inputs",
                    "build again: what they compute is kept by inputs",
                )
            else:
                yield from judge.judge(case.label, expected, found)
        yield from judge.summary()

    def _check_boundaries(self, task: Task, recorded: Path, variant: Variant) -> Iterator[Finding]:
        """Whether the file's EPContext nodes are those that the generating sessions ran."""
        kept = recordings.read_boundaries(recorded, variant.place)
        found = list(boundaries.differences(self.folder.load(task.model), kept))
        wrong = "; ".join(found if variant.misfit is None else [*found, variant.misfit])
        if not kept:
            message = "its execution provider does not tell what its generating sessions take"
            yield finding(task.model, "boundaries", "not checkable", message, _ON_DEVICE)
        elif wrong:
            message = f"other EPContext nodes than the generating sessions ran: {wrong}"
            message = f"{variant.name}: {message}" if variant.name else message
            yield finding(task.model, "boundaries", "fail", message, REBUILD)
        else:
            message = "its EPContext nodes take and give what the generating sessions do"
            if variant.name:
                message = f"{variant.name}: {message}, {_ALIKE}"
            yield finding(task.model, "boundaries", "pass", message)

    def _refusal(self, task: Task) -> Iterator[Found]:
        """Why the generating sessions told nothing, where the files did not either."""
        if self.recorded is None or task.model.file in self.ran:
            return
        refusal = recordings.refusal(self.recorded, task.source.source.name)
        if refusal is not None:
            full = self.settings.numbers == "full"
            remedy = _ON_DEVICE if full else "set `verify.numbers: full`"
            yield unchecked(task.model, refusal, remedy)

    def _check_files(
        self, models: Sequence[ContextModel], tasks: Sequence[Task]
    ) -> Iterator[Found]:
        """What the files give when they are loaded, all models of the sharing set together."""
        runs = {
            task.model.file: Run(
                model=task.model,
                name=task.source.source.name,
                judge=self._judge(task, "files"),
                cases=list(task.ready),
                count=len(task.expected),
            )
            for task in tasks
        }
        for found in self.files(models, runs):
            if isinstance(found, OutputNumbers):
                self.ran.add(found.model)
            yield found

    def _judge(self, task: Task, who: Sessions, variant: str = "") -> Judge:
        judge = Judge(
            file=task.model.file,
            sessions=who,
            providers=self.folder.providers.of(task.model.sources),
            precision=task.source.precision,
            asked=self.settings.tolerance,
            probabilities=task.source.probabilities,
            inputs="given" if self.settings.inputs.files else "generated",
            idle=task.idle,
            random=task.random,
            variant=variant,
            known={case.label: outputs for case, outputs in task.ready},
            again=task.again,
        )
        reference = task.source.source.reference
        if reference is None or reference.of_source or not task.reference:
            return judge
        other = replace(
            judge,
            precision="quantized",
            asked=reference.tolerance,
            right="its reference",
            known=task.reference,
            again=None,
        )
        return replace(judge, reference=(other, task.reference))


def _told(task: Task, found: Sequence[Sizes]) -> Iterator[Finding]:
    """The sizes that stand for all others, of a model that leaves some open."""
    if found[0]:
        listed = " and ".join(map(sizes.words, found))
        message = f"its open dimensions are checked at {listed}"
        if len(found) == 1:
            message += " only: at no other sizes that were tried does its source run"
        yield finding(task.model, "sizes", "pass", message)
