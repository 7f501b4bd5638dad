"""`epctx verify`: check outputs against checksums, the op's schema, EPs and source models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace
from rich.text import Text

from epctx import api
from epctx.cli import declared, problems, step_summary
from epctx.cli import junit as xml
from epctx.cli import sarif as log
from epctx.cli.options import Sarif
from epctx.cli.render import UI
from epctx.commands.options import Written
from epctx.errors import VerificationError
from epctx.files import atomic
from epctx.verification.findings import (
    CODES,
    TOLD,
    Finding,
    FolderReport,
    Outcome,
    PolicyName,
    VerifyReport,
)

_NAMED = 2
"""How many unchecked items to list per reason without `-v`."""
STYLES: dict[Outcome, str] = {
    "pass": "green",
    "fail": "bold red",
    "not checkable": "yellow",
    "not covered": "yellow",
}
WORDS: dict[Outcome, str] = {
    "pass": "ok",
    "fail": "failed",
    "not checkable": "not checkable",
    "not covered": "not covered",
}
_WORST_FIRST: tuple[Outcome, ...] = ("fail", "not checkable", "not covered", "pass")


@declared.by(api.verify)
def verify(
    ui: UI,
    call: Callable[..., VerifyReport],
    *,
    junit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the result as JUnit XML."),
        Written(),
    ] = None,
    sarif: Sarif = None,
) -> int:
    report = call(waiting=ui.waiting)
    if junit is not None:
        atomic.replace(junit, xml.document(report))
    if sarif is not None:
        atomic.replace(sarif, log.document(list(problems.of_verification(report))))
    ui.emit(report)
    step_summary.verify(report)
    return show(ui, report)


def show(ui: UI, report: VerifyReport) -> int:
    """Print a report and return the exit code."""
    every = bool(ui.verbose)
    for folder in report.folders:
        if every or _is_checked(folder):
            ui.print(_folder(folder, every=every))
    if not every:
        ui.print(*_unchecked(report.folders))
    ui.print(_summary(report))
    return 0 if report.passed else VerificationError.exit_code


def _is_checked(folder: FolderReport) -> bool:
    return any(finding.outcome != "not covered" for finding in folder.findings)


def _folder(report: FolderReport, *, every: bool) -> Text:
    lines = [Text(report.folder, style="bold")]
    for policy in TOLD:
        findings = [f for f in report.findings if f.policy == policy]
        if findings:
            lines.append(_policy(policy, findings))
    listed = [f for f in report.findings if every or f.outcome == "fail" or f.is_note]
    lines += [_finding(finding) for finding in _merged(listed)]
    return Text("\n").join(lines)


def _policy(policy: PolicyName, findings: list[Finding]) -> Text:
    counts = Counter(finding.outcome for finding in findings)
    worst = next(o for o in _WORST_FIRST if counts[o])
    words = [f"{counts[o]} {WORDS[o]}" for o in WORDS if counts[o]]
    return Text.assemble(
        f"  {policy:<15}",
        (f"{WORDS[worst]:<15}", STYLES[worst]),
        (", ".join(words), "dim"),
    )


def _merged(findings: list[Finding]) -> list[Finding]:
    """Merge equal findings of several files."""
    merged: dict[tuple[str, str, str, str], Finding] = {}
    for finding in findings:
        key = (finding.check, finding.outcome, finding.message, finding.remedy)
        earlier = merged.get(key)
        if earlier is None:
            merged[key] = finding
        else:
            subject = f"{earlier.subject}, {finding.subject}"
            merged[key] = replace(earlier, subject=subject)
    return list(merged.values())


def _unchecked(folders: Iterable[FolderReport]) -> Iterator[Text]:
    """Render unchecked items: each reason once, with the first items that it applies to."""
    groups: dict[tuple[str, ...], list[tuple[str, Finding]]] = {}
    for folder in folders:
        for each in folder.findings:
            if each.outcome in ("not checkable", "not covered"):
                same = groups.setdefault((each.policy, each.check, each.message, each.remedy), [])
                same.append((f"{folder.folder}/{each.subject}".removesuffix("/."), each))
    for same in groups.values():
        places = [place for place, _ in same]
        more = f" and {len(places) - _NAMED:,} more" if len(places) > _NAMED else ""
        yield _finding(replace(same[0][1], subject=", ".join(places[:_NAMED]) + more))


def _finding(finding: Finding) -> Text:
    subject = "" if finding.subject == "." else f"{finding.subject}: "
    code = f"[{CODES[finding.policy]}]" if finding.outcome == "fail" else ""
    word = "note" if finding.is_note else WORDS[finding.outcome]
    text = Text.assemble(
        (f"  {word}{code}: ", STYLES[finding.outcome]),
        (subject, "bold"),
        finding.message,
        (f"  [{finding.policy}/{finding.check}]", "dim"),
    )
    if finding.remedy:
        text.append(f"\n    -> {finding.remedy}", style="cyan")
    return text


def _summary(report: VerifyReport) -> Text:
    counts = Counter(finding.outcome for finding in report.findings())
    folders = sum(map(_is_checked, report.folders))
    models = sum(len(f.models) for f in report.folders)
    words = [
        f"{folders} folder{'s' * (folders != 1)}",
        f"{models} model{'s' * (models != 1)}",
        f"{counts['pass']} check{'s' * (counts['pass'] != 1)} passed",
    ]
    words += [f"{counts['fail']} failed"] if counts["fail"] else []
    words += [f"{counts['not checkable']} not checkable"] if counts["not checkable"] else []
    if not report.passed and not counts["fail"]:
        words[-1] += " (--strict)"
    words += [report.unrun] if report.unrun is not None else []
    words += [f"{counts['not covered']} not covered"] if counts["not covered"] else []
    return Text(
        f"{report.verdict}: {', '.join(words)}",
        style="bold green" if report.passed else "bold red",
    )
