"""Golden inputs and outputs: made on a host with the source model, checked on hosts without it.

The right outputs are those of the source model on ONNX Runtime's CPU EP, as in `numbers`
(`verification.numbers.sessions`), but in one thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import onnxruntime as ort

from epctx import codec
from epctx.error_codes import Code
from epctx.errors import EpctxError, ManifestError, ModelError, VerificationError
from epctx.files import outputs
from epctx.files.digest import of_file
from epctx.files.outputs import OutputFile, context_file
from epctx.graph import wiring
from epctx.graph.inputs import Array, InputSpec
from epctx.inference import feeds
from epctx.inference.feeds import Feeds, InputSet
from epctx.manifest import ModelGroup, ModelSource, Tolerance, VerifySettings
from epctx.verification.findings import Finding, PolicyName
from epctx.verification.folder import ContextModel, GroupFolder, read_proto, sharing_sets, summarize
from epctx.verification.numbers import (
    branches,
    golden_files,
    recordings,
    sessions,
    sizes,
    tolerances,
    unoptimized,
)
from epctx.verification.numbers.composed import (
    find_sizes,
    inputs_of,
    interfaces,
    one_after_the_other,
    outputs_of,
    precisions,
    probable,
    where,
)
from epctx.verification.numbers.expected import INFERENCE, Expected, NotHere, Unsized, drawn
from epctx.verification.numbers.files import Feeding, name_of
from epctx.verification.numbers.golden_files import (
    FOLDER,
    RECORD,
    Golden,
    GoldenCase,
    GoldenModel,
    GoldenSet,
)
from epctx.verification.numbers.input_sets import Case, InputSets
from epctx.verification.numbers.judge import Judge, Outputs
from epctx.verification.numbers.policy import Found, judged, loads
from epctx.verification.numbers.sizes import NotFound, Sizes
from epctx.verification.numbers.source_model import SourceModel, refuse_nonfinite
from epctx.verification.numbers.tasks import finding, unchecked, words
from epctx.verification.numbers.tolerances import Precisions, of_output
from epctx.verification.request import Composed, Kept

_finding: Final = partial(Finding, "numbers", "golden")
_AGAIN: Final = "copy it again from where it was released, or write it with `epctx build --golden`"


def make(
    group: ModelGroup, built: Path, folder: Path, two_answers: Sequence[str] = ()
) -> tuple[OutputFile, ...]:
    """Write the golden files of a group's models, and their SHA256SUMS.

    Args:
        group: the model group, with source models and inputs of verify.
        built: folder of the EPContext models, whose fixed shapes count.
        folder: new folder for the files.
        two_answers: EPContext models that verification compared with the kernels of the source.

    Raises:
        ModelError: a source model is missing, does not run, or gives NaN or infinities on an input
            file; an input file cannot be read.
        ManifestError: no inputs can be made for a model.
        StorageError: a file cannot be written.
    """
    input_sets = InputSets(group.verify.inputs)

    def golden() -> Iterator[tuple[str, GoldenModel, Sequence[GoldenCase]]]:
        for source in group.models:
            model = SourceModel.read(source)
            inputs = model.fixed_inputs(_summary(built, source.name))
            cases = _cases(source.name, inputs, input_sets, _search(model, inputs, input_sets))
            by_kernels = context_file(source.name) in two_answers
            with contextlib.suppress(Exception):  # verification reports why
                cases += branches.reaching(source, inputs, cases, more=input_sets.generated)[1]
            right = _run(source, [case.feeds for case in cases], by_kernels=by_kernels)
            for case, outputs_of_case in zip(cases, right, strict=True):
                refuse_nonfinite(source, group.verify, case.label, outputs_of_case)
            of = model.precision, model.probabilities
            yield _golden(source.name, *of, group.verify, cases, right)

    return _write(folder, golden())


def make_composed(composed: Composed, built: Path, folder: Path) -> tuple[OutputFile, ...]:
    """Write the golden files of a composition: its source models, run one after the other.

    Args and errors as in `make`.
    """
    composition = composed.composition
    name, settings = composition.name, composition.verify

    def golden() -> Iterator[tuple[str, GoldenModel, Sequence[GoldenCase]]]:
        ports = outputs_of(composition)
        wired = wiring.resolve(interfaces(composed), ports, where=where(composition))
        inputs = inputs_of(composed, wired, _summary(built, name))
        input_sets = InputSets(settings.inputs)

        def run(all_feeds: Sequence[Feeds]) -> list[Feeds]:
            return one_after_the_other(
                composed, wired, all_feeds, lambda part, fed: _run(part.source, fed)
            )

        try:
            size_sets = find_sizes(input_sets, inputs, lambda fed: run([fed]))
        except NotFound as error:
            raise ManifestError(
                f"there are no golden inputs for the composition {name}: its parts do not run at "
                f"{sizes.words(error.sizes)}",
                where=where(composition),
                why=error.why,
                remedy="set `verify.inputs.dimensions` of the composition",
            ) from error
        cases = _cases(name, inputs, input_sets, size_sets)
        right = run([case.feeds for case in cases])
        of = precisions(composed, wired), probable(composed, wired)
        yield _golden(name, *of, settings, cases, right)

    return _write(folder, golden())


def _write(
    folder: Path, golden: Iterator[tuple[str, GoldenModel, Sequence[GoldenCase]]]
) -> tuple[OutputFile, ...]:
    models: dict[str, GoldenModel] = {}
    try:
        folder.mkdir(parents=True)
        for name, model, cases in golden:
            golden_files.write(folder / f"{name}.npz", cases)
            models[name] = model
        record = codec.encode(Golden(models=models), indent=2) + b"\n"
        (folder / RECORD).write_bytes(record)
        written = tuple(_hashed(path) for path in sorted(folder.iterdir()))
        sums = outputs.write_sums(folder, written)
        outputs.sync_files(folder / file.name for file in written)
    except OSError as error:
        raise outputs.unwritable(folder, error) from error
    return (*written, sums)


def _summary(built: Path, name: str) -> ContextModel:
    return summarize(context_file(name), read_proto(built / context_file(name)))


def _search(
    model: SourceModel, inputs: Sequence[InputSpec], input_sets: InputSets
) -> tuple[Sizes, ...]:
    try:
        return Expected(model, inputs, input_sets).find_sizes()
    except (Unsized, NotHere) as error:
        raise ManifestError(
            f"there are no golden inputs for the model {model.source.name}: {error}",
            remedy=error.remedy,
        ) from error


def _cases(
    name: str, inputs: Sequence[InputSpec], input_sets: InputSets, size_sets: Sequence[Sizes]
) -> list[Case]:
    problems = input_sets.problems(inputs)
    if problems:
        raise ManifestError(
            f"there are no golden inputs for the model {name}: {'; '.join(problems)}",
            remedy=input_sets.remedy(inputs),
        )
    cases = list(input_sets.cases(inputs, size_sets))
    if not cases:
        raise ManifestError(
            f"no input file fits the model {name}",
            remedy="add a file to `verify.inputs.files` that does",
            code=Code.VERIFY_INPUTS,
        )
    return cases


def _golden(
    name: str,
    precision: Precisions,
    probabilities: frozenset[str],
    settings: VerifySettings,
    cases: Sequence[Case],
    right: Sequence[Feeds],
) -> tuple[str, GoldenModel, Sequence[GoldenCase]]:
    golden_cases = [
        GoldenCase(label=case.label, inputs=case.feeds, outputs=outputs)
        for case, outputs in zip(cases, right, strict=True)
    ]
    sets = (
        GoldenSet(label=case.label, inputs=tuple(case.inputs), outputs=tuple(case.outputs))
        for case in golden_cases
    )
    model = GoldenModel(
        precision=precision,
        tolerance=settings.tolerance,
        sets=tuple(sets),
        probabilities=tuple(sorted(probabilities)),
    )
    return name, model, golden_cases


def _run(
    source: ModelSource, all_feeds: Sequence[Feeds], *, by_kernels: bool = False
) -> list[Feeds]:
    """Run a source model in one thread: the number of threads changes last digits.

    If ONNX Runtime gives it two answers, that of the kernels is right, as in verification.
    `by_kernels`: verification has found two answers.
    """
    try:
        model = SourceModel.read(source)
        session = sessions.open_source(source, threads=1)
        right = [sessions.run_source(session, each) for each in all_feeds]
        if model.may_draw or model.folds or by_kernels:
            plain = sessions.open_source(
                source, threads=1, level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            )
            kernels = [sessions.run_source(plain, each) for each in all_feeds]
            if model.may_draw:
                _refuse_random(source, drawn(lambda: sessions.run_source(plain, all_feeds[0])))

            def limits(name: str, dtype: str) -> Tolerance:
                return tolerances.of_type(of_output(name, model.precision), dtype)

            differ = model.folds and any(
                unoptimized.difference(a, b, limits) for a, b in zip(right, kernels, strict=True)
            )
            if by_kernels or differ:
                return kernels
        return right
    except ModelError:
        raise
    except Exception as error:  # onnxruntime's errors have no common class
        raise ModelError(
            "does not run on the golden inputs",
            file=str(source.path),
            why=sessions.words(error),
            remedy="set `verify.inputs.ranges`, or give `verify.inputs.files` that it accepts",
        ) from error


def _refuse_random(source: ModelSource, names: Collection[str]) -> None:
    """Refuse outputs that differ in a second run of the source. Raises ModelError."""
    if names:
        raise ModelError(
            f"its outputs {', '.join(sorted(names))} are random: they differ from run to run",
            file=str(source.path),
            model=source.name,
            remedy=INFERENCE,
        )


def _hashed(path: Path) -> OutputFile:
    return OutputFile(
        name=path.name,
        size=path.stat().st_size,
        sha256=of_file(path, "sha256"),
        blake3=of_file(path),
    )


class Shipped(Feeding):
    """The golden inputs of a folder's models."""

    def __init__(self, folder: GroupFolder) -> None:
        self._place = folder.path / FOLDER

    def cases(self, model: ContextModel, index: int | None) -> Iterator[Case]:
        """Yield all cases of a model; none if its golden inputs cannot be read."""
        try:
            golden = golden_files.read_record(self._place).models.get(name_of(model))
            yield from () if golden is None else (case for case, _ in self.read(model, golden))
        except (EpctxError, OSError):
            return

    def read(
        self, model: ContextModel, golden: GoldenModel
    ) -> Iterator[tuple[Case, Mapping[str, Array]]]:
        """Yield the cases of a model, each with its golden outputs.

        Raises:
            VerificationError: they cannot be read.
            ManifestError: they do not fit the model.
        """
        for case in golden_files.read(self._place, name_of(model), golden):
            values = InputSet(label=case.label, named=case.inputs)
            fitted = feeds.fit(values, model.inputs)
            yield Case(label=case.label, feeds=fitted), case.outputs

    def refused(self, model: ContextModel, error: Exception) -> Finding:
        """Return the finding about a model that could not be loaded."""
        return finding(model, "loads", "fail", words(error), _AGAIN)

    def failed(self, model: ContextModel, case: Case, error: Exception) -> Finding:
        """Return the finding about a model that does not run on a case."""
        return finding(model, "runs", "fail", f"on golden inputs: {words(error)}", _AGAIN)


@dataclass(frozen=True, kw_only=True)
class GoldenNumbers:
    """Compare every output of every model with the golden outputs that were shipped with it."""

    kept: Kept | None = None
    name: PolicyName = field(default="numbers", init=False)

    def check(self, folder: GroupFolder, earlier: Sequence[Finding]) -> Iterator[Found]:
        """Judge the models of the folder; raises StorageError."""
        place = folder.path / FOLDER
        if not place.is_dir():
            yield _finding(FOLDER, "fail", "the folder has no golden inputs", _AGAIN)
            return
        failed = {f.subject: f for f in reversed(earlier) if f.outcome == "fail"}
        if any(subject.startswith(f"{FOLDER}/") for subject in failed):
            return  # integrity has reported why golden files are not used
        try:
            record = golden_files.read_record(place)
        except VerificationError as error:
            yield _finding(f"{FOLDER}/{RECORD}", "fail", error.why or error.what, _AGAIN)
            return
        for models in sharing_sets(folder):
            for model in models:
                golden = record.models.get(name_of(model))
                wrong = next((failed[file] for file in model.files if file in failed), None)
                if golden is None or not golden.sets:
                    yield finding(model, "golden", "fail", "has no golden inputs", _AGAIN)
                elif wrong is not None:
                    reason = f"not run, since {wrong.policy} failed: {wrong.subject}"
                    yield unchecked(model, f"{reason} {wrong.message}", "fix that first")
                elif self.kept is not None:
                    yield from self._judge(folder, model, golden, self.kept)

    def _judge(
        self, folder: GroupFolder, model: ContextModel, golden: GoldenModel, kept: Kept
    ) -> Iterator[Found]:
        try:
            cases = list(Shipped(folder).read(model, golden))
        except EpctxError as error:
            message = f"on golden inputs: {words(error)}"
            yield finding(model, "runs", "fail", message, _AGAIN)
            return
        findings = list(loads(model, kept, (), runs=True))
        yield from findings
        if any(each.outcome != "pass" for each in findings if each.check in ("loads", "outputs")):
            return
        judge = Judge(
            file=model.file,
            sessions="files",
            providers=folder.providers.of(model.sources),
            precision=golden.precision,
            probabilities=frozenset(golden.probabilities),
            asked=golden.tolerance,
            inputs="golden",
            right="the golden outputs",
            known={case.label: right for case, right in cases},
        )
        name = name_of(model)
        typed = [
            (case, as_computed(right, recordings.read(kept.files, name, case.feeds) or {}))
            for case, right in cases
        ]
        yield from judged(model, kept, typed, judge)


def as_computed(right: Outputs, actual: Outputs) -> Outputs:
    """Return golden outputs in the types of the computed ones, if `.npy` kept only their bits."""
    return {name: _as(array, actual.get(name)) for name, array in right.items()}


def _as(expected: Array, actual: Array | None) -> Array:
    """Return an array in its original type: `.npy` keeps only the bits of ml_dtypes, and stores
    text with a fixed width.
    """
    if actual is None or expected.dtype == actual.dtype:
        return expected
    if expected.dtype.kind == "V" and expected.dtype.itemsize == actual.dtype.itemsize:
        return expected.view(actual.dtype)
    return expected.astype(object) if expected.dtype.kind == "U" else expected
