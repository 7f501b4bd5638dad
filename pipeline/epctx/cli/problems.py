"""Problems: the common form of errors, warnings and findings, for every kind of output.

`text` renders a problem for people, `github` as an annotation, `sarif` for code scanning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace
from rich.text import Text

from epctx.engine.report import BuildReport
from epctx.error_codes import Code
from epctx.errors import EpctxError, Failure, InvalidGraph, InvalidManifest, Violation
from epctx.parsing import document
from epctx.text import visible
from epctx.verification.findings import CODES, VerifyReport

Level = Literal["error", "warning", "note"]
_SHOWN: Final = 20
"""Maximum number of problems to list without `-v`."""


class Problem(Struct, frozen=True, kw_only=True):
    """One error, warning or finding.

    Attributes:
        what: the fault and its cause.
        remedy: what the user can do; empty if nothing.
        subject: key of the manifest, or `policy/check`; empty if there is none.
        group: `group@target`; empty if the problem belongs to no group.
        place: place in words; empty if `file` and `line` are the place.
        file: path as the user named it; None if the problem is not about a file.
        line: line in the file, from 1; 0 for the whole file.
        column: column in the line, from 1; 0 for the whole line.
        level: `warning` for a possible mistake, `note` for a check that could not run.
    """

    code: Code
    what: str
    remedy: str = ""
    subject: str = ""
    group: str = ""
    place: str = ""
    file: str | None = None
    line: int = 0
    column: int = 0
    level: Level = "error"

    @property
    def position(self) -> str:
        """`file:line:column`, as editors and terminals link it."""
        if self.file is None:
            return ""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


def of_violations(violations: Iterable[Violation], level: Level = "error") -> list[Problem]:
    """Return violations of manifests, or warnings, as problems."""
    return [
        Problem(
            code=each.code,
            what=each.what,
            remedy=each.remedy,
            subject=each.path,
            file=each.file,
            line=each.line,
            column=each.column,
            level=level,
        )
        for each in violations
    ]


def of_error(error: EpctxError) -> list[Problem]:
    """Return an error as a problem; an invalid manifest gives one for each violation."""
    if isinstance(error, InvalidManifest):
        return of_violations(error.violations)
    problem = _of_failure(error.failure)
    if isinstance(error, InvalidGraph):
        problem = replace(problem, place=f"{error.status}: {problem.place or problem.position}")
    return [problem]


def of_groups(report: BuildReport, manifest: Path) -> Iterator[Problem]:
    """Yield the failures of a build's groups, each at its group in the manifest."""
    root = document.read(manifest).root
    sections = [node for key in ("model_groups", "compose") if (node := root.get(key)) is not None]
    for group in report.groups:
        if group.failure is None:
            continue
        marks = (node.keys[group.group] for node in sections if group.group in node.keys)
        mark = next(marks, None)
        label = f"{group.group}@{group.target}"
        yield _of_failure(
            dataclasses.replace(
                group.failure,
                group=label,
                file=manifest.as_posix(),
                line=mark.line if mark else 0,
                column=mark.column if mark else 0,
            )
        )


def of_verification(report: VerifyReport) -> Iterator[Problem]:
    """Yield the findings that did not pass."""
    for folder in report.folders:
        for finding in folder.findings:
            if finding.outcome != "pass":
                strict = report.strict and finding.outcome == "not checkable"
                yield Problem(
                    code=CODES[finding.policy],
                    what=finding.message,
                    remedy=finding.remedy,
                    subject=f"{finding.policy}/{finding.check}",
                    file=(Path(folder.folder) / finding.subject).as_posix(),
                    level="error" if finding.outcome == "fail" or strict else "note",
                )


def _of_failure(failure: Failure) -> Problem:
    problem = Problem(
        code=failure.code,
        what=": ".join(filter(None, (failure.what, failure.why))),
        remedy=failure.remedy,
        group=failure.group or "",
        file=failure.file,
        line=failure.line,
        column=failure.column,
    )
    if failure.where in (None, problem.position):
        return problem
    return replace(problem, place=failure.where or "")


def texts(problems: Sequence[Problem], *, every: bool) -> Iterator[Text]:
    """Yield a text for each of the first problems, then the number of the others.

    Args:
        every: yield all problems.
    """
    shown = problems if every else problems[:_SHOWN]
    yield from map(text, shown)
    if len(problems) > len(shown):
        more = f"and {len(problems) - len(shown):,} more in {problems[0].file}: -v shows all"
        yield Text(more, style="dim")


def text(problem: Problem) -> Text:
    """Return the text of a problem for people: place, fault, then remedy."""
    style = "bold red" if problem.level == "error" else "yellow"
    unnamed = problem.level == "warning" and problem.code is Code.MANIFEST
    head = f"{problem.level}: " if unnamed else f"{problem.level}[{problem.code}]: "
    shown = Text.assemble((head, style))
    for words, kind in (
        (problem.group, "bold"),
        (problem.place or problem.position, "bold"),
        (problem.subject, "magenta"),
    ):
        if words:
            shown.append(visible(f"{shortened(words)}: "), style=kind)
    shown.append(visible(shortened(problem.what)))
    for remedy in problem.remedy.splitlines():
        shown.append(f"\n  -> {visible(shortened(remedy))}", style="cyan")
    return shown


def shortened(text: str) -> str:
    """Return a message with the paths in it relative to the current folder."""
    here = Path.cwd().as_posix().rstrip("/")
    return text.replace(f"{here}/", "") if here else text
