"""Tasks of the numbers policy: a model, its source, EPs and input sets; or an obstacle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from epctx.errors import EpctxError, InvalidGraph, ModelError, ProviderUnavailable
from epctx.files.outputs import context_file
from epctx.graph.inputs import Array, InputSpec
from epctx.manifest import ModelSource, VerifyInputs
from epctx.providers.base import Outcome
from epctx.verification.findings import NOT_CHECKED, REBUILD, Finding
from epctx.verification.folder import ContextModel, GroupFolder
from epctx.verification.numbers import sessions, source_model
from epctx.verification.numbers.input_sets import Case, InputSets
from epctx.verification.numbers.sizes import Sizes, open_names
from epctx.verification.numbers.source_model import SourceModel
from epctx.verification.numbers.unoptimized import Rerun


class Task(Struct, kw_only=True):
    """A model to compare: its inputs and its right outputs.

    Attributes:
        inputs: inputs of the model; some of their dimensions may be open.
        cases: the input sets; empty until the sizes of open dimensions are known.
        expected: right outputs of the cases, in their order; fewer than `cases` if the budget is
            used up or a case failed.
        idle: outputs that no input changes, so that a comparison proves nothing.
        random: outputs that differ in each run of the source; they are not compared.
        reference: outputs of the reference, by the label of the case; empty if there is none.
        rerun: runs the source once more.
        other: second case if there is a single one, which shows whether outputs depend on inputs.
    """

    model: ContextModel
    source: SourceModel
    inputs: tuple[InputSpec, ...]
    cases: tuple[Case, ...] = ()
    expected: list[dict[str, Array]] = field(default_factory=list)
    idle: frozenset[str] = frozenset()
    random: frozenset[str] = frozenset()
    reference: dict[str, dict[str, Array]] = field(default_factory=dict)
    rerun: Rerun | None = None
    other: tuple[Case, dict[str, Array]] | None = None

    @property
    def ready(self) -> Iterator[tuple[Case, dict[str, Array]]]:
        """Yield the cases whose right outputs are known, with these outputs."""
        return zip(self.cases, self.expected, strict=False)


class Impossible(Exception):
    """A model cannot be run; `finding` has the reason."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class Preparation:
    """Makes the tasks of a folder.

    Args:
        folder: folder with a known group.
        settings: settings of the inputs; errors of `InputSets` pass through.
        earlier: findings of earlier policies; no file that failed there is loaded.
    """

    def __init__(
        self, folder: GroupFolder, settings: VerifyInputs, earlier: Sequence[Finding]
    ) -> None:
        assert folder.group is not None
        self._folder = folder
        self._sources = {context_file(source.name): source for source in folder.group.models}
        self._earlier = earlier
        self._fed: set[str] = set()
        self.inputs = InputSets(settings)

    def task(self, model: ContextModel) -> Task:
        """Return the task of a model.

        Raises:
            Impossible: the model cannot be compared.
        """
        self._refuse_broken(model)
        source = self._source(model)
        faults = source.interface_faults(model)
        if faults:
            raise Impossible(finding(model, "interface", "fail", "; ".join(faults), REBUILD))
        self._fed.add(model.file)
        inputs = source.fixed_inputs(model)
        self.inputs.note(inputs)
        problems = self.inputs.problems(inputs)
        if problems:
            remedy = self.inputs.remedy(inputs)
            raise Impossible(unchecked(model, "; ".join(problems), remedy))
        return Task(model=model, source=source, inputs=inputs)

    def feed(self, task: Task, size_sets: Sequence[Sizes]) -> None:
        """Make the input sets of a task, at sizes of its open dimensions.

        Raises:
            Impossible: no input file fits the model.
            ManifestError: a range does not fit its input.
        """
        task.cases = tuple(self.inputs.cases(task.inputs, size_sets))
        if not task.cases:
            remedy = "add a file to `verify.inputs.files` that does"
            raise Impossible(unchecked(task.model, "no input file fits it", remedy))

    def is_open(self, inputs: Sequence[InputSpec], size_sets: Sequence[Sizes]) -> bool:
        """Return whether dimensions are open without known sizes."""
        return self.inputs.generated and not size_sets[0] and bool(open_names(inputs))

    def refuse_unused_inputs(self) -> None:
        """Raise ManifestError for a misspelt range or a file that fits no model. Call it after all
        tasks.
        """
        unfed = [source for file, source in self._sources.items() if file not in self._fed]
        self.inputs.refuse_unused(map(source_model.inputs, unfed))

    def _refuse_broken(self, model: ContextModel) -> None:
        failed = broken(model, self._earlier)
        if failed is not None:
            raise Impossible(
                unchecked(
                    model,
                    f"not run, since {failed.policy} failed: {failed.subject} {failed.message}",
                    "fix that first: execution providers do not check what they load",
                )
            )

    def _source(self, model: ContextModel) -> SourceModel:
        source: ModelSource | None = self._sources.get(model.file)
        if source is None:
            raise Impossible(
                unchecked(
                    model,
                    "no source: the manifest's group has no model of this name",
                    "remove the file, or verify it with the manifest that it was built from",
                )
            )
        try:
            return SourceModel.read(source)
        except ModelError as error:
            raise Impossible(
                unchecked(model, f"no source: {words(error)}", error.remedy)
            ) from error


def broken(model: ContextModel, earlier: Sequence[Finding]) -> Finding | None:
    """Return the first failed finding about a model's files; None if no check failed. Files with a
    failure must not be loaded.
    """
    failed = (f for f in earlier if f.outcome == "fail" and f.subject in model.files)
    return next(failed, None)


def finding(
    model: ContextModel, check: str, outcome: Outcome, message: str, remedy: str = ""
) -> Finding:
    """Make a finding of the numbers policy about a model."""
    return Finding("numbers", check, model.file, outcome, message, remedy)


def unchecked(model: ContextModel, message: str, remedy: str) -> Finding:
    """Return the finding that outputs could not be checked, with the reason."""
    return finding(model, "outputs", "not checkable", message, remedy)


def budget(model: ContextModel, seconds: float | None, case: Case | None = None) -> Finding:
    """Return the finding that a case was not run, since the time budget of numbers is used up.

    Args:
        seconds: the budget; None if it was unlimited.
        case: the case; None if no case was run.
    """
    which = "" if case is None else f"{case.label}: "
    if seconds is None:
        return unchecked(model, f"{which}{NOT_CHECKED}it was not run", "verify it again")
    message = f"{which}{NOT_CHECKED}budget ({seconds:g} s are used up)"
    return unchecked(model, message, "raise `verify.budget`")


def words(error: Exception) -> str:
    """Return the message of an error without its remedy, since a finding has its own."""
    if not isinstance(error, EpctxError):
        return sessions.words(error)
    return f"{error.where}: {error.reason}" if error.where else error.reason


def obstacle(folder: GroupFolder, model: ContextModel, *, sharing: bool) -> tuple[str, str] | None:
    """Return why a model cannot be loaded here, and the remedy; None if it may be tried.

    Args:
        sharing: other models share its context.
    """
    for source in model.sources:
        provider = folder.providers.find(source)
        if provider is None:
            return f"no EP on this host accepts the source '{source}'", folder.providers.why_not(
                source
            )
        own = [node for node in model.nodes if node.source == source]
        try:
            reason = provider.cannot_load(own, folder.path, sharing=sharing)
        except (InvalidGraph, ProviderUnavailable) as error:
            return words(error), error.remedy
        if reason is not None:
            return reason, "verify it on the device"
    return None
