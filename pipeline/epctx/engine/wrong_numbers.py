"""Failure of a group with wrong numbers (E0704): possible causes and remedies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from epctx.engine.plan import PlannedGroup
from epctx.error_codes import Code
from epctx.errors import EpctxError, VerificationError
from epctx.files.outputs import context_file
from epctx.manifest import ModelSource
from epctx.parsing.precedence import DEFAULT_TARGET
from epctx.verification.findings import (
    GENERATED,
    WRONG,
    Finding,
    FolderReport,
    OutputNumbers,
    error_of,
)

_LEAST: Final = 0.5
"""Smallest cosine similarity that a low precision can explain."""
_DIGITS: Final = 2
"""Digits of a proposed tolerance."""


def explain(
    error: EpctxError, report: FolderReport, planned: PlannedGroup, manifest: Path
) -> EpctxError:
    """Return the error about the worst output, with remedies in this order: guessed sizes,
    generated inputs, float16, a tolerance that would pass, `epctx bisect`.

    Args:
        error: the failure of the group; returned unchanged if it is not about wrong outputs.
        report: the report of the verification.
        manifest: path of the manifest.
    """
    failed = [f for f in report.findings if f.check == "outputs" and f.outcome == "fail"]
    if error.code != Code.NUMBERS or not failed:
        return error
    wrong = [each for each in report.numbers if not each.passed]
    finding, outputs = failed[0], {(each.model, each.output) for each in wrong}
    if wrong:
        alone = [each for each in wrong if each.sessions == "pieces"]  # a piece is to blame
        worst = max(alone or wrong, key=lambda each: error_of(each.comparison))
        words = f"{worst.input_set}: output '{worst.output}': "
        finding = next((f for f in failed if f.message.startswith(words)), finding)
        wrong = [each for each in wrong if each.sessions == worst.sessions]
    more = f" (the worst of {len(outputs)} outputs that are wrong)" if len(outputs) > 1 else ""
    model = next((m for m in planned.group.models if context_file(m.name) == finding.subject), None)
    explained = VerificationError(
        f"numbers: {finding.message}{more}",
        file=finding.subject,
        remedy="\n".join(_remedies(finding, report, wrong, model, planned, manifest)),
        code=Code.NUMBERS,
    )
    explained.log = error.log
    return explained


def _remedies(
    finding: Finding,
    report: FolderReport,
    wrong: Sequence[OutputNumbers],
    model: ModelSource | None,
    planned: PlannedGroup,
    manifest: Path,
) -> Iterator[str]:
    findings = [each for each in report.findings if each.subject == finding.subject]
    if model is not None and model.guesses:
        keys = f"`dimensions` and `shapes` of `models.{model.name}`"
        yield (
            f"its sizes are guesses of `epctx init` ({model.guesses}): set yours in {keys}, and "
            "remove their names from `guessed`"
        )
    for each in findings:
        if each.check == GENERATED:
            keys = "`verify.inputs.files`, or set `verify.inputs.ranges`"
            yield f"its inputs are {each.message}: give real ones with {keys}"
    for each in findings:
        if each.check == "headroom" and each.message.startswith("overflows"):
            yield f"it {each.message}: {each.remedy}"
    if finding.remedy != WRONG:
        yield finding.remedy
    yield from _tolerance(wrong)
    if model is not None:
        group = planned.group.name if planned.target == DEFAULT_TARGET else planned.label
        path = f'"{manifest.as_posix()}"' if " " in manifest.as_posix() else manifest.as_posix()
        yield f"find the first wrong node: `epctx bisect {path} {group} {model.name}`"


def _tolerance(wrong: Sequence[OutputNumbers]) -> Iterator[str]:
    """Yield a remedy with the tolerance that would pass, if there is one."""
    # Imported here, since it loads numpy, which only a failure needs.
    from epctx.verification.numbers import compare

    passing: dict[str, float] = {}
    for each in wrong:
        comparison, top_k = each.comparison, each.comparison.top_k
        share = top_k.agreeing / top_k.decided if top_k is not None and top_k.decided else None
        for name, value, is_minimum in (
            ("max_abs", comparison.max_abs, False),
            ("max_rel", comparison.max_rel, False),
            ("cosine_min", comparison.cosine, True),
            ("sqnr_min", comparison.sqnr, True),
            ("top_k_min", share, True),
        ):
            limit = getattr(each.tolerance, name)
            limit = 1.0 if limit is None and name == "top_k_min" else limit
            if limit is None or value is None or (value >= limit if is_minimum else value <= limit):
                continue
            rounded = _rounded(value, up=not is_minimum)
            passing[name] = (min if is_minimum else max)(passing.get(name, rounded), rounded)
    if passing and not any(
        compare.excess(each.comparison, replace(each.tolerance, **passing)) for each in wrong
    ):
        key = "quantize.tolerance" if wrong[0].sessions == "quantized" else "verify.tolerance"
        listed = ", ".join(f"{name}: {value:g}" for name, value in passing.items())
        large = passing.get("max_rel", 0.0) > 1 or passing.get("cosine_min", 1.0) < _LEAST
        words = (
            "no precision explains this: only" if large else "if the EP's precision explains it,"
        )
        yield f"{words} `{key}: {{{listed}}}` would pass"


def _rounded(value: float, *, up: bool) -> float:
    """Round a value to few digits, up or down."""
    if not value or not math.isfinite(value):
        return value
    step = 10.0 ** (math.floor(math.log10(abs(value))) - _DIGITS + 1)
    return float(f"{(math.ceil if up else math.floor)(value / step) * step:.{_DIGITS + 1}g}")
