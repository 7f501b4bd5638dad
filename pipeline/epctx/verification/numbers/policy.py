"""Numbers: outputs of the EPContext model compared with those of the source model on ONNX Runtime's
CPU EP, for the same inputs.

Sources and files ran before, one input set after the other, and their outputs are recorded
(`recordings`). This module runs models only to explain a difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import onnx
from msgspec.structs import replace

from epctx.graph.inputs import InputSpec
from epctx.graph.serde import protos
from epctx.inference.feeds import assumed
from epctx.manifest import ModelSource, VerifySettings
from epctx.providers.base import Boundary, Outcome
from epctx.verification.findings import (
    GENERATED,
    NOT_CHECKED,
    REBUILD,
    Finding,
    OutputNumbers,
    PolicyName,
    Sessions,
)
from epctx.verification.folder import ContextModel, GroupFolder, sharing_sets
from epctx.verification.numbers import (
    expected,
    headroom,
    piece_numbers,
    recordings,
    sizes,
    tolerances,
    unoptimized,
)
from epctx.verification.numbers.expected import Expected, tell_random
from epctx.verification.numbers.files import AGAIN, LOADS, Feeding, name_of
from epctx.verification.numbers.input_sets import Case
from epctx.verification.numbers.judge import TELLING, Judge, Outputs, constant
from epctx.verification.numbers.pieces import Values
from epctx.verification.numbers.recordings import Variant
from epctx.verification.numbers.sizes import Sizes
from epctx.verification.numbers.source_model import SourceModel, refuse_nonfinite
from epctx.verification.numbers.tasks import (
    Impossible,
    Preparation,
    Task,
    broken,
    budget,
    finding,
    unchecked,
)
from epctx.verification.numbers.unoptimized import Rerun
from epctx.verification.request import Kept

Found = Finding | OutputNumbers
_NOT_GENERATING: Final = (
    "it has open dimensions, and the generating sessions were not run",
    "set `verify.numbers: full`, or fix `dimensions` and `shapes` of the model",
)
_ON_DEVICE: Final = "verify it on the device"
_ALIKE: Final = (
    "made for it alone, and the graphs have the same names, tensors, types and order there; only "
    "the device can show that they compute the same"
)


class Fed(Feeding):
    """The input sets of a model group on which its sources have run.

    Args:
        folder: folder with a known group.
        kept: folders of recorded outputs.
        earlier: findings of earlier policies.
    """

    of_source = True

    def __init__(self, folder: GroupFolder, kept: Kept, earlier: Sequence[Finding]) -> None:
        assert folder.group is not None
        self._preparation = Preparation(folder, folder.group.verify.inputs, earlier)
        self._kept = kept
        self._inputs: dict[str, Sequence[InputSpec]] = {}
        self.count = self._preparation.inputs.count

    def cases(self, model: ContextModel, index: int | None) -> Iterator[Case]:
        """Yield the cases of one input set, or of all."""
        name, sets = name_of(model), self._preparation.inputs
        try:
            if name not in self._inputs:
                self._inputs[name] = self._preparation.task(model).inputs
        except Impossible:
            return
        inputs = self._inputs[name]
        size_sets = expected.read_sizes(self._kept.source, name)
        if self._preparation.is_open(inputs, size_sets):
            return
        cases = [*sets.cases(inputs, size_sets)] if index in (None, sets.count) else []
        if index is not None and index < sets.count:
            cases = [*sets.nth(inputs, index, size_sets)]
        elif cases:
            more = expected.further(self._kept.source, name, cases[0])
            cases = [*cases, *more] if index is None else more
        yield from (e for e in cases if recordings.has(self._kept.source, name, e.feeds))

    def between(self, model: ContextModel) -> Case | None:
        """Return the second case, which shows whether outputs depend on inputs."""
        name = name_of(model)
        size_sets = expected.read_sizes(self._kept.source, name)
        other = self._preparation.inputs.another(sizes.fixed(self._inputs[name], size_sets[0]))
        recorded = other is not None and recordings.has(self._kept.source, name, other.feeds)
        return other if recorded else None


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Compare every output of every model, on every input set.

    Attributes:
        kept: folders of recorded outputs; None if there are none.
        passed: files that passed before.
    """

    kept: Kept | None = None
    passed: frozenset[str] = frozenset()
    name: PolicyName = field(default="numbers", init=False)

    def check(self, folder: GroupFolder, earlier: Sequence[Finding]) -> Iterator[Found]:
        """Judge the models of the folder.

        Raises:
            ModelError: an input file of the manifest cannot be read, or a source model gives NaN or
                infinities on it.
            ManifestError: an input file or a range fits no model.
            StorageError: what was kept cannot be read.
        """
        group = folder.group
        selected = [
            models
            for models in sharing_sets(folder)
            if not all(model.file in self.passed for model in models)
        ]
        if group is not None and group.verify.numbers != "off" and self.kept is not None:
            preparation = Preparation(folder, group.verify.inputs, earlier)
            judging = _Judging(folder, group.verify, self.kept, preparation, earlier)
            for models in selected:
                yield from judging.sharing_set(models)
            if folder.whole:
                preparation.refuse_unused_inputs()
            return
        reason = "its source is unknown: only the manifest names it"
        remedy = "give the manifest with --manifest"
        if group is not None:
            reason = "the manifest says `numbers: off`"
            remedy = "set `verify.numbers` to full or generating"
        for models in sharing_sets(folder):
            for model in models:
                yield unchecked(model, reason, remedy)
            for model in models if models in selected else ():
                yield from loads(model, self.kept, earlier)
                yield from piece_numbers.loads(model, self.kept).values()


def loads(
    model: ContextModel, kept: Kept | None, earlier: Sequence[Finding], *, runs: bool = False
) -> Iterator[Finding]:
    """Yield the findings of a model's load.

    Args:
        runs: the model should also have been run.
    """
    if kept is None or broken(model, earlier) is not None:
        return
    findings = recordings.kept(kept.files, name_of(model), LOADS, tuple[Finding, ...])
    for each in findings or ():
        yield each if runs or each.check != "outputs" else replace(each, check="loads")


def judged(
    model: ContextModel,
    kept: Kept,
    cases: Sequence[tuple[Case, Outputs]],
    judge: Judge,
    seconds: float | None = None,
    other: tuple[Case, Outputs] | None = None,
) -> Iterator[Found]:
    """Judge the outputs of a model's files.

    Args:
        cases: the input sets, each with the right outputs.
        seconds: time budget of the runs; None if there was none.
        other: the case that ran between the first case and its repetition.
    """
    name, wrong = name_of(model), False
    for case, right in cases:
        failed = recordings.failure(kept.files, name, case.feeds)
        actual = recordings.read(kept.files, name, case.feeds)
        if failed is not None:
            yield failed
        elif actual is None:
            yield budget(model, seconds, case)
        else:
            for result in judge.judge(case.label, right, actual):
                wrong = wrong or (isinstance(result, Finding) and result.outcome == "fail")
                yield result
    telling = not wrong and any(right.keys() - judge.random for _, right in cases[:1])
    if telling and recordings.has(kept.files, name, cases[0][0].feeds):
        yield from _repeated(model, kept, cases[0], other, judge)
    yield from judge.summary()


def _repeated(
    model: ContextModel,
    kept: Kept,
    first: tuple[Case, Outputs],
    other: tuple[Case, Outputs] | None,
    judge: Judge,
) -> Iterator[Found]:
    """Judge the second run on the first case, and the run between; report if there was none.

    The run between has no tolerance. It may repeat an output of the first run only if the limits
    allow that output, or the right one of the first run, for its inputs.
    """
    name, place = name_of(model), f"{name_of(model)}/{AGAIN}"
    case, right = first
    once = recordings.read(kept.files, name, case.feeds) or {}
    for each in (case,) if other is None else (other[0], case):
        refused = recordings.failure(kept.files, place, each.feeds)
        if refused is not None:
            yield replace(refused, message=f"{refused.message}, in a later run")
            return
    if other is not None:
        between = recordings.read(kept.files, place, other[0].feeds) or {}
        moving = expected.differing(right, other[1]) - judge.random
        equal = sorted(moving & between.keys() - expected.differing(once, between))
        stale = [n for n in equal if judge.differ(n, other[1], right, between)]
        if equal:
            outcome: Outcome = "fail" if stale else "not checkable"
            message = f"{other[0].label}: {', '.join(map(repr, stale or equal))} is what the run "
            message += f"before gave{'' if stale else ', and the limits allow that'}"
            yield finding(model, "determinism", outcome, message, REBUILD if stale else TELLING)
        if stale:
            return
    again = recordings.read(kept.files, place, case.feeds)
    note = "not tried: a run takes a second or longer, or the budget was used up"
    if again is not None:
        note = "its outputs are the same when it is run again"
        differ = sorted(expected.differing(once, again) - judge.random)
        if differ:
            note = f"{', '.join(map(repr, differ))} differ from run to run, within the tolerance"
            judge = dataclasses.replace(judge, when="in a later run", reference=None)
            results = list(judge.judge(case.label, right, again))
            if not all(isinstance(each, OutputNumbers) for each in results):
                yield from results
                return
    yield finding(model, "determinism", "pass", note)


@dataclass
class _Judging:
    """Judgement of the numbers of one folder. `earlier`: findings of earlier policies."""

    folder: GroupFolder
    settings: VerifySettings
    kept: Kept
    preparation: Preparation
    earlier: Sequence[Finding]
    ran: set[str] = field(default_factory=set)
    """Files that have numbers from their own sessions."""

    def sharing_set(self, models: Sequence[ContextModel]) -> Iterator[Found]:
        """Judge models that share a context, or one model that shares with no other."""
        tasks: dict[str, Task] = {}
        for model in models:
            try:
                task = self.preparation.task(model)
            except Impossible as error:
                yield error.finding
                continue
            yield finding(model, "interface", "pass", "its inputs and outputs are its source's")
            yield from self._expect(task)
            if task.expected:
                tasks[model.file] = task
        for task in tasks.values():
            yield from self._check_recorded(task)
        for model in models:
            yield from self._check_files(model, tasks.get(model.file))
            yield from self._check_pieces(model, tasks.get(model.file))
        for task in tasks.values():
            yield from self._refusal(task)
            yield from self._headroom(task)

    def _headroom(self, task: Task) -> Iterator[Finding]:
        """Report values of the source near or beyond the largest number of its EPs' type."""
        providers = self.folder.providers.of(task.model.sources)
        tolerance = self.settings.tolerance
        end = tolerances.limits(providers, "float32", "float32", tolerance).saturates_at
        if end is None:
            return
        place = f"{task.source.source.name}/{expected.MAGNITUDES}"
        measured = recordings.read(self.kept.source, place, task.cases[0].feeds)
        if measured is None:
            why = (
                "its source runs in pieces"
                if task.model.cuts is not None
                else "the source did not run"
            )
            yield finding(task.model, "headroom", "pass", f"not measured: {why}")
            return
        compiled = self.folder.load(task.model)
        for message, remedy in headroom.notes(task.source.source, compiled, measured, end):
            yield finding(task.model, "headroom", "pass", message, remedy)

    def _expect(self, task: Task) -> Iterator[Found]:
        """Load the right outputs: those of the source model in a stock session."""
        name, source = task.source.source.name, self.kept.source
        refused = recordings.kept(source, name, expected.REFUSAL, Finding)
        size_sets = expected.read_sizes(source, name)
        if refused is not None:
            yield replace(refused, subject=task.model.file)
            return
        if self.preparation.is_open(task.inputs, size_sets):
            yield budget(task.model, self.settings.budget)
            return
        try:
            self.preparation.feed(task, size_sets)
        except Impossible as error:
            yield error.finding
            return
        task.cases += tuple(expected.further(source, name, task.cases[0]))
        yield from _sizes_compared(task, size_sets)
        if self.preparation.inputs.generated and task.inputs:
            inputs = sizes.fixed(task.inputs, size_sets[0])
            words = assumed(inputs, self.settings.inputs.ranges)
            yield finding(task.model, GENERATED, "pass", f"generated: {words}")
        for case in task.cases:
            failed = recordings.failure(source, name, case.feeds)
            outputs = recordings.read(source, name, case.feeds)
            if failed is not None:
                left_out = NOT_CHECKED if task.expected else ""
                message = f"{left_out}{failed.message}"
                yield replace(failed, subject=task.model.file, message=message)
                break
            if outputs is None:
                remaining = task.cases[len(task.expected) :] if task.expected else (None,)
                for each in remaining:
                    yield budget(task.model, self.settings.budget, each)
                break
            refuse_nonfinite(task.source.source, self.settings, case.label, outputs)
            misfit = self._misfit(task, case, outputs)
            if misfit is not None:
                yield misfit
                break
            task.expected.append(outputs)
        if task.expected:
            yield from self._study(task)

    def _misfit(self, task: Task, case: Case, outputs: Outputs) -> Finding | None:
        """Return the finding that generated values lead to other sizes of outputs than are
        declared; None if they do not, or if these sizes do not depend on values.
        """
        if not self.preparation.inputs.generated:
            return None
        graph = self.folder.load(task.model).graph
        for value in graph.output:
            name, tensor, array = value.name, value.type.tensor_type, outputs.get(value.name)
            if array is None:
                continue
            own = onnx.helper.make_tensor_type_proto(tensor.elem_type, array.shape)
            if not tensor.HasField("shape") or not protos.contradict(
                tensor.shape, own.tensor_type.shape
            ):
                continue
            inputs = task.source.sizing(name)
            if inputs:
                word = "input" if len(inputs) == 1 else "inputs"
                listed = ", ".join(f"`{each}`" for each in inputs)
                actual, declared = protos.sizes(own.tensor_type.shape), protos.sizes(tensor.shape)
                return unchecked(
                    task.model,
                    f"{case.label}: {NOT_CHECKED}the generated values of {word} {listed} ask for "
                    f"another size of {name!r}: {actual}, declared is {declared}",
                    "give values that fit it in a file with all inputs: `verify: {inputs: {files: "
                    "[inputs.npz]}}`",
                )
        return None

    def _study(self, task: Task) -> Iterator[Found]:
        """Yield findings about the source that do not come from its outputs."""
        name, source = task.source.source.name, self.kept.source
        cases = {case.label: case for case in task.cases}
        runs = self._source_of(task)
        task.rerun = Rerun(runs.compute, cases)
        random = recordings.kept(source, name, expected.RANDOM, tuple[str, ...])
        task.random = frozenset(random or ())
        yield from tell_random(task.model, task.random)
        if task.source.folds and not task.random:
            yield from self._compare_answers(task)
        yield from self._sensitivity(task)
        covered = recordings.kept(source, name, expected.COVERAGE, Finding)
        yield from () if covered is None else (replace(covered, subject=task.model.file),)
        yield from self._refer(task)

    def _compare_answers(self, task: Task) -> Iterator[Finding]:
        """Compare the files with the kernels' outputs if ONNX Runtime gives two answers."""
        case, stock = next(task.ready)
        place = f"{task.source.source.name}/{expected.KERNELS}"
        failed = recordings.failure(self.kept.source, place, case.feeds)
        kernels = recordings.read(self.kept.source, place, case.feeds)
        if failed is not None:
            yield replace(failed, subject=task.model.file)
        if kernels is None:
            return
        difference = unoptimized.difference(stock, kernels, self._judge(task, "files").limits)
        if difference is None:
            message = "ONNX Runtime gives it one answer, with and without its optimizations"
            yield finding(task.model, "source", "pass", message)
            return
        assert task.rerun is not None
        task.rerun.held.update(kernels)
        task.expected[:] = (
            kernels if each is case else dict(task.rerun.compute(each.feeds, False))
            for each, _ in task.ready
        )
        yield unoptimized.two_answers(task.model.file, case.label, difference)

    def _refer(self, task: Task) -> Iterator[Found]:
        """Load the outputs of the reference model, if the manifest names one beside the source."""
        reference, name = task.source.source.as_reference, task.source.source.name
        if reference is None:
            return
        place = f"{name}/{expected.REFERENCE}"
        refused = recordings.kept(self.kept.source, place, expected.REFUSAL, Finding)
        for case, _ in task.ready:
            failed = refused or recordings.failure(self.kept.source, place, case.feeds)
            outputs = recordings.read(self.kept.source, place, case.feeds)
            if failed is not None:
                task.reference.clear()
                message = f"not against its reference: {failed.message}"
                yield replace(failed, subject=task.model.file, message=message)
                return
            if outputs is None:
                task.reference.clear()
                unrun = budget(task.model, self.settings.budget, case)
                yield replace(unrun, message=f"not against its reference: {unrun.message}")
                return
            task.reference[case.label] = outputs
        yield from self._check_quantized(task, reference)

    def _check_quantized(self, task: Task, float_model: ModelSource) -> Iterator[Found]:
        """Compare the model that this build quantized with the float model."""
        named = task.source.source.reference
        if named is None or not named.of_source:
            return
        reference = SourceModel.read(float_model)
        compute = Expected(reference, task.inputs, self.preparation.inputs).compute
        judge = dataclasses.replace(
            self._judge(task, "quantized"),
            precision="quantized",
            asked=named.tolerance,
            right="the float model",
            known=task.reference,
            rerun=Rerun(compute, {case.label: case for case in task.cases}),
        )
        for case, outputs in task.ready:
            yield from judge.judge(case.label, task.reference[case.label], outputs)
        yield from judge.summary()
        task.reference.clear()

    def _sensitivity(self, task: Task) -> Iterator[Finding]:
        """Find outputs that no input changes, whose comparison cannot fail."""
        results: list[Outputs] = [
            {n: value for n, value in outputs.items() if n not in task.random and value.size}
            for case, outputs in task.ready
            if case.sizes == task.cases[0].sizes
        ]
        other = self.preparation.inputs.another(sizes.fixed(task.inputs, task.cases[0].sizes))
        if other is not None:
            name = task.source.source.name
            more = recordings.read(self.kept.source, name, other.feeds)
            if more is not None and self._misfit(task, other, more) is None:
                results.append(more)
                task.other = other, more
                if task.rerun is not None:
                    task.rerun.cases[other.label] = other
        if len(results) < 2 or not task.inputs or not results[0]:
            return
        task.idle = constant(results)
        if not task.idle:
            yield finding(task.model, "sensitivity", "pass", "its outputs depend on the inputs")
            return
        names = tuple(results[0])
        listed = ", ".join(repr(name) for name in names if name in task.idle)
        subject = "its outputs" if len(task.idle) == len(names) else f"of its outputs, {listed}"
        yield finding(
            task.model,
            "sensitivity",
            "not checkable",
            f"{subject} do not depend on the inputs: comparing them cannot fail",
            "verify a model with real weights, or give inputs that reach its outputs with "
            "`verify.inputs`; of many classes a quantized Softmax gives zeros only",
        )

    def _check_recorded(self, task: Task) -> Iterator[Found]:
        """Judge the outputs of the generating sessions."""
        recorded, name = self.kept.generating, task.source.source.name
        if task.model.cuts is not None:
            return
        if recorded is None:
            if self.settings.numbers == "generating":
                yield unchecked(
                    task.model,
                    "no generating session: its EPs compile without one, or it is not being built",
                    "set `verify.numbers: full` to load and run the files",
                )
            return
        if recordings.refusal(recorded, name) is not None:
            return
        if task.cases[0].sizes:
            if self.settings.numbers == "generating":
                yield unchecked(task.model, *_NOT_GENERATING)
            return
        for variant in recordings.variants(recorded, name):
            yield from self._check_variant(task, recorded, variant)

    def _check_variant(self, task: Task, recorded: Path, variant: Variant) -> Iterator[Found]:
        refusal = recordings.refusal(recorded, variant.place) if variant.name else None
        if not variant.begun:
            message = f"{variant.name}: {NOT_CHECKED}budget"
            yield unchecked(task.model, message, "raise `verify.budget`")
            return
        if refusal is not None:
            yield unchecked(task.model, f"{variant.name}: {NOT_CHECKED}{refusal}", _ON_DEVICE)
            return
        boundaries = recordings.boundaries(recorded, variant.place)
        yield from self._tell_boundaries(task, boundaries, variant)
        judge = self._judge(task, "generating", variant.name)
        for case, right in task.ready:
            outputs = recordings.read(recorded, variant.place, case.feeds)
            if outputs is None and self.settings.budget is not None:
                yield budget(task.model, self.settings.budget, case)
            elif outputs is None:
                yield unchecked(
                    task.model,
                    f"{case.label}: {NOT_CHECKED}the generating sessions ran other inputs",
                    "build again: their outputs are kept by input set",
                )
            else:
                yield from judge.judge(case.label, right, outputs)
        yield from judge.summary()

    def _tell_boundaries(
        self, task: Task, boundaries: Sequence[Boundary], variant: Variant
    ) -> Iterator[Finding]:
        """Report whether the file's EPContext nodes are those that the generating sessions ran."""
        differences = list(
            recordings.boundary_differences(self.folder.load(task.model), boundaries)
        )
        wrong = "; ".join(differences if variant.misfit is None else [*differences, variant.misfit])
        if not boundaries:
            message = (
                "its execution provider does not report the boundaries of its generating sessions"
            )
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
        """Report why the generating sessions have no outputs, if the files have none either."""
        if self.kept.generating is None or task.model.file in self.ran:
            return
        refusal = recordings.refusal(self.kept.generating, task.source.source.name)
        if refusal is not None:
            full = self.settings.numbers == "full"
            remedy = _ON_DEVICE if full else "set `verify.numbers: full`"
            yield unchecked(task.model, refusal, remedy)

    def _check_files(self, model: ContextModel, task: Task | None) -> Iterator[Found]:
        """Judge the outputs of a file; all models of its sharing set were loaded together."""
        runs = task is not None and self.settings.numbers == "full"
        findings = list(loads(model, self.kept, self.earlier, runs=runs))
        self._require_runs(task, findings)
        yield from findings
        sound = broken(model, self.earlier) is None
        if not findings and sound and self.settings.numbers != "full":
            yield replace(budget(model, self.settings.budget), check="loads")
        if task is None or not runs:
            return
        if not findings and sound and self.kept.generating is None:
            for case in task.cases[: len(task.expected)]:
                yield budget(model, self.settings.budget, case)
        if not any(each.check == "loads" and each.outcome == "pass" for each in findings):
            return
        judge = self._judge(task, "files")
        ready, budgeted = list(task.ready), self.settings.budget
        yield from self._noted(task, judged(model, self.kept, ready, judge, budgeted, task.other))

    def _noted(self, task: Task, results: Iterator[Found]) -> Iterator[Found]:
        """Yield the results of files; note files with numbers. Raises as `_require_runs`."""
        for each in results:
            if isinstance(each, OutputNumbers):
                self.ran.add(each.model)
            self._require_runs(task, (each,))
            yield each

    def _source_of(self, task: Task) -> Expected:
        """Return a runner of the source of a task, in pieces if its files are in pieces."""
        cuts = task.model.cuts
        return Expected(task.source, task.inputs, self.preparation.inputs, cuts=cuts)

    def _check_pieces(self, model: ContextModel, task: Task | None) -> Iterator[Found]:
        """Judge the outputs of a model's pieces, if it is in pieces."""
        loaded = piece_numbers.loads(model, self.kept).values()
        self._require_runs(task, list(loaded))
        yield from loaded
        recorded = self.kept.generating
        if task is None or model.cuts is None or self.settings.numbers != "full":
            return
        if recorded is not None:
            places = map(Values(recorded, name_of(model)).place, range(1, len(model.cuts) + 2))
            boundaries = [
                each for place in places for each in recordings.boundaries(recorded, place)
            ]
            yield from self._tell_boundaries(task, boundaries, Variant(name="", place=""))
        elif not loaded:
            return
        built, source = self.folder.load(model), self._source_of(task)
        judge, seconds = self._judge(task, "files"), self.settings.budget
        results = piece_numbers.judged(task, self.kept, built, source, judge, seconds)
        yield from self._noted(task, results)

    def _require_runs(self, task: Task | None, results: Sequence[Found]) -> None:
        """Raise ModelError if files do not load or run, and the source's own nodes do not run
        either.
        """
        fails = {f.check for f in results if isinstance(f, Finding) and f.outcome == "fail"}
        if task is None or task.rerun is None or fails.isdisjoint(("loads", "runs")):
            return
        for case, _ in task.ready:
            try:
                task.rerun.compute(case.feeds, False)
            except Exception as error:  # onnxruntime's errors have no common class
                raise unoptimized.needed(task.source.source, error) from error

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
            rerun=task.rerun,
        )
        reference = task.source.source.reference
        if reference is None or reference.of_source or not task.reference:
            return judge
        other = dataclasses.replace(
            judge,
            precision="quantized",
            asked=reference.tolerance,
            right="its reference",
            known=task.reference,
            rerun=None,
        )
        return dataclasses.replace(judge, reference=(other, task.reference))


def _sizes_compared(task: Task, size_sets: Sequence[Sizes]) -> Iterator[Finding]:
    """Report the sizes at which a model with open dimensions was compared."""
    if size_sets[0]:
        listed = " and ".join(map(sizes.words, size_sets))
        message = f"its open dimensions are checked at {listed}"
        if len(size_sets) == 1:
            message += " only: at no other sizes that were tried does its source run"
        yield finding(task.model, "sizes", "pass", message)
