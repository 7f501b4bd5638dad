"""Results of verification: findings, comparisons of numbers, and the report that holds them.

Everything here crosses process borders and goes into the build report as JSON
(schemas/report.schema.json), so it is plain data: no path objects, no NaN, no infinity.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from epctx.error_codes import Code
from epctx.manifest import Tolerance
from epctx.text import Brief

Outcome = Literal["pass", "fail", "not checkable", "not covered"]
"""Outcome of a check: one of `epctx.providers.base`, or "not covered" for an entry that no check
of `epctx verify` covers.
"""
PolicyName = Literal["signature", "integrity", "conformance", "compatibility", "numbers"]
POLICIES: tuple[PolicyName, ...] = ("integrity", "conformance", "compatibility", "numbers")
"""Policies in the order in which they are applied; only the last one runs models."""
TOLD: Final[tuple[PolicyName, ...]] = ("signature", *POLICIES)
"""Policies in the order of the report: the signature comes before the content."""
CODES: Final[dict[PolicyName, Code]] = {
    "signature": Code.SIGNATURE,
    "integrity": Code.INTEGRITY,
    "conformance": Code.CONFORMANCE,
    "compatibility": Code.COMPATIBILITY,
    "numbers": Code.NUMBERS,
}
"""Error code of a failed finding, by its policy."""
Sessions = Literal["generating", "files", "pieces", "chain", "quantized", "device"]
"""Origin of the compared outputs: the sessions that made the context (`generating`), the loaded
files, each piece of a model alone on the source's values (`pieces`), the pieces one after the other
(`chain`), the model that this build quantized, on the CPU EP, or a device.
"""
Inputs = Literal["generated", "given", "golden"]
"""Origin of the inputs that a model was run on: `given` are the files of `verify.inputs.files`."""
NOT_CHECKED: Final = "not checked: "
"""Prefix of the reason why the numbers of a model were not run on an input set."""
GENERATED: Final = "inputs"
"""Name of the check whose finding lists the values that were generated for a model's inputs."""
WRONG: Final = (
    "if the EP's precision explains it, set `verify.tolerance`; else `epctx bisect` finds the "
    "first wrong node, and what repairs it"
)
"""Remedy of an output that is outside of its tolerance."""
REBUILD: Final = "build it again, or ask whoever made it to"
"""Remedy of a finding that only another build can fix."""


DECADES: Final = tuple(10.0**power for power in range(-8, 1))
"""Bin edges of the histogram of relative errors, 1e-8 to 1."""


class Finding(Struct, frozen=True):
    """One check of one subject. A check is never skipped in silence: it is "not checkable".

    Attributes:
        policy: policy that made the check.
        check: name of the check, the same everywhere: `ep_cache_context`, `sums`, `outputs`.
        subject: a file of the folder; `.` is the folder itself.
        outcome: outcome; `message` has the reason of "not checkable" and "not covered".
        message: result of the check, one clause.
        remedy: remedy of a problem; empty for a pass.
    """

    policy: PolicyName
    check: str
    subject: str
    outcome: Outcome
    message: str
    remedy: str = ""

    @property
    def is_note(self) -> bool:
        """Return whether the check passed and has a message that a user should see."""
        return self.check in ("headroom", "gain")


class Worst(Struct, frozen=True, kw_only=True):
    """The element that differs most: its index, and both values as text (also `nan`, `inf`)."""

    index: tuple[int, ...]
    expected: str
    actual: str


class TopK(Struct, frozen=True, kw_only=True):
    """Agreement of the largest elements of each row, in an output that looks like scores.

    Attributes:
        rows: number of rows.
        decided: rows in which a gap between two of the largest elements is wider than the allowed
            error.
        agreeing: decided rows in which the elements before the widest gap are the largest ones.
        winners: number of different elements that are the largest of a decided row.
        exchanged: other rows in which another element is the largest, by more than the error of all
            elements explains.
    """

    rows: int
    decided: int
    agreeing: int
    winners: int
    exchanged: int = 0


class Comparison(Struct, frozen=True, kw_only=True):
    """Difference of an output from the right output.

    Attributes:
        dtype: of the expected output, as numpy or ml_dtypes names it.
        shape: of the expected output.
        problem: a difference that no tolerance excuses: type, shape, NaN or infinity on one side
            only, or only zeros where the right output has other values.
        equal: every element is equal, NaN to NaN too.
        max_abs: largest absolute difference, in the output's unit; None if it is undefined.
        mean_abs: mean absolute difference, in the output's unit; None if not floating-point.
        max_rel: largest difference relative to the element's scale, which is the largest ordinary
            magnitude of the output or of its slice (docs/numbers.md); None if that is 0.
        cosine: cosine similarity of the ordinary elements, each divided by its scale, -1 to 1;
            None if one side is zero or not floating-point.
        sqnr: signal-to-quantization-noise ratio of the same elements, in decibels; None if there
            is no noise or no signal.
        gain: factor between the ordinary elements and the right ones, by least squares over the
            same quotients: 1 without a fault; None if all right values are zero.
        power: sum of the squares of the right quotients: the weight of this gain in an average.
        scale: the largest ordinary magnitude; None if not floating-point.
        checkable: share of the elements that could have failed, 0 to 1.
        nan: number of elements that are NaN, as they should be.
        infinite: number of elements that are infinite, as they should be.
        top_k: agreement of the largest elements; None if the output does not look like scores.
        worst: element whose difference is largest for its scale; None if there is none.
        histogram: number of compared elements by their error relative to their scale: no error,
            less than each of `DECADES`, more. Empty if not floating-point.
    """

    dtype: str
    shape: tuple[int, ...]
    problem: str | None = None
    equal: bool = False
    max_abs: float | None = None
    mean_abs: float | None = None
    max_rel: float | None = None
    cosine: float | None = None
    sqnr: float | None = None
    gain: float | None = None
    power: float = 0.0
    scale: float | None = None
    checkable: float = 0.0
    nan: int = 0
    infinite: int = 0
    top_k: TopK | None = None
    worst: Worst | None = None
    histogram: tuple[int, ...] = ()


class OutputNumbers(Struct, frozen=True, kw_only=True):
    """One output of one model on one input set, compared with the right output.

    Attributes:
        model: the EPContext model's file name.
        right: origin of the right output: the source model, its reference, its parts or the golden
            outputs.
        input_set: label of the inputs: `seed 0, set 1` or the file's name.
        inputs: origin of the inputs.
        tolerance: the limits; None in a field if the output was not judged by it.
        passed: the comparison is within the tolerance.
    """

    model: str
    output: str
    input_set: str
    inputs: Inputs = "generated"
    sessions: Sessions
    right: str = "the source model"
    comparison: Comparison
    tolerance: Tolerance
    passed: bool


def on_inputs(numbers: Iterable[OutputNumbers]) -> str | None:
    """Words for the inputs of comparisons, "on generated inputs"; None if there are none."""
    kinds = dict.fromkeys(each.inputs for each in numbers)
    return f"on {' and '.join(kinds)} inputs" if kinds else None


class FolderReport(Brief, frozen=True, kw_only=True):
    """Findings about one group folder, or about one model in it.

    Attributes:
        folder: the caller's name of the folder.
        models: file names of the checked models.
    """

    folder: str
    models: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    numbers: tuple[OutputNumbers, ...] = ()

    @property
    def unrun(self) -> str | None:
        """Reason why not all numbers of its models were run; None if all were."""
        for finding in self._unrun():
            reason = finding.message.rpartition(NOT_CHECKED)[2]
            return f"numbers not {'all ' if self.numbers else ''}run: {reason}"
        return None

    def _unrun(self) -> Iterator[Finding]:
        """Yield the first finding for each model that says why numbers were not run."""
        ran, reported = {each.model for each in self.numbers}, set[str]()
        for finding in self.findings:
            open_ = finding.policy == "numbers" and finding.outcome == "not checkable"
            unrun = open_ and (NOT_CHECKED in finding.message or finding.subject not in ran)
            if unrun and finding.subject not in reported:
                reported.add(finding.subject)
                yield finding

    def with_required(self, require: Collection[str]) -> FolderReport:
        """Turn each finding that required numbers were not run into a failure."""
        if "numbers" not in require:
            return self
        unrun = set(self._unrun())

        def failed(finding: Finding) -> Finding:
            message = f"required numbers were not run: {finding.message.replace(NOT_CHECKED, '')}"
            return replace(finding, check="required", outcome="fail", message=message)

        findings = tuple(failed(each) if each in unrun else each for each in self.findings)
        return replace(self, findings=findings)

    def with_skipped(self) -> FolderReport:
        """Add a finding for each model whose numbers `--no-verify` left out."""
        reported = {finding.subject for finding in self.findings if finding.policy == "numbers"}
        message, remedy = f"{NOT_CHECKED}--no-verify", "build again, with numbers"
        skipped = (
            Finding("numbers", "outputs", model, "not checkable", message, remedy)
            for model in self.models
            if model not in reported
        )
        return replace(self, findings=(*self.findings, *skipped))


def joined(folder: str, parts: Iterable[FolderReport]) -> FolderReport:
    """Join reports on parts of a folder into one, policy by policy."""
    reports = list(parts)
    findings = [finding for report in reports for finding in report.findings]
    return FolderReport(
        folder=folder,
        models=tuple(dict.fromkeys(name for report in reports for name in report.models)),
        findings=tuple(sorted(findings, key=lambda f: TOLD.index(f.policy))),
        numbers=tuple(n for report in reports for n in report.numbers),
    )


class VerifyReport(Brief, frozen=True, kw_only=True):
    """The result of `epctx verify`. `strict`: "not checkable" counts as a failure.

    "Not covered" never does: with a lock or trusted keys, such an entry is a failed finding.
    """

    folders: tuple[FolderReport, ...]
    strict: bool = False

    def findings(self, outcome: Outcome | None = None) -> Iterator[Finding]:
        """All findings, or those with this outcome, in order."""
        for folder in self.folders:
            for finding in folder.findings:
                if outcome is None or finding.outcome == outcome:
                    yield finding

    @property
    def unrun(self) -> str | None:
        """Words for numbers that were not all run; None if all were."""
        reasons = [folder.unrun for folder in self.folders if folder.models]
        if not any(reasons):
            return None
        ran = any(folder.numbers for folder in self.folders)
        return "numbers not all run" if ran else "numbers not run"

    @property
    def verdict(self) -> str:
        """The verdict in words, with the inputs that models were run on."""
        on = on_inputs(each for folder in self.folders for each in folder.numbers)
        return f"verified {on or ''}".rstrip() if self.passed else "NOT verified"

    @property
    def passed(self) -> bool:
        """Return whether no check failed and, if strict, every check was possible."""
        bad: tuple[Outcome, ...] = ("fail", "not checkable") if self.strict else ("fail",)
        return not any(finding.outcome in bad for finding in self.findings())


def largest_error(numbers: Iterable[OutputNumbers]) -> float | None:
    """Return the largest error of any output, relative if defined; None if no output was compared.

    The error is infinite if an output has another type or shape.
    """
    comparisons = [n.comparison for n in numbers]
    if not comparisons:
        return None
    return max(error_of(each) for each in comparisons)


def error_words(error: float | None) -> str:
    """Put an error in words."""
    if error is None:
        return "not run"
    if math.isinf(error):
        return "not comparable"
    return f"{error:.1e}" if error else "0"


def error_of(comparison: Comparison) -> float:
    """Return the error of an output, relative if that is defined; infinite if not comparable."""
    if comparison.problem is not None and comparison.max_abs is None:
        return math.inf
    return (comparison.max_abs or 0.0) if comparison.max_rel is None else comparison.max_rel
