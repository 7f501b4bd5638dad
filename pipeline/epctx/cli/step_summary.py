"""Summary of a step for the page of a GitHub workflow run: tables in Markdown.

GitHub shows the text that a step appends to the file `GITHUB_STEP_SUMMARY`, up to 1 MiB per step
(docs.github.com, "Workflow commands for GitHub Actions", "Adding a job summary").
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, get_args

from epctx.cli import summary
from epctx.cli.problems import shortened
from epctx.commands.report import figures
from epctx.engine.report import BuildReport
from epctx.errors import Failure
from epctx.text import visible
from epctx.verification.findings import CODES, TOLD, Outcome, VerifyReport

_VARIABLE: Final = "GITHUB_STEP_SUMMARY"
_MOST: Final = 1 << 20
"""Maximum bytes. If a step appends more, GitHub shows nothing of it."""
_ROWS: Final = 200
"""Maximum rows of a table."""
_CELL: Final = 500
"""Maximum characters of a cell."""
_MARKS: Final = re.compile(r"([!-/:-@\[-`{-~])")
"""ASCII punctuation. A backslash before it removes its meaning in Markdown."""


def wanted() -> bool:
    """Tell whether this is a step of a GitHub workflow that shows a summary."""
    return bool(os.environ.get(_VARIABLE))


def build(report: BuildReport) -> None:
    """Append a build: one row per group, then the failures with their reasons."""
    if wanted():
        _append(_built(report))


def verify(report: VerifyReport) -> None:
    """Append a verification: one row per folder, then the failed checks."""
    if wanted():
        _append(_verified(report))


def _built(report: BuildReport) -> Iterator[str]:
    states = Counter(group.state for group in report.groups)
    words = ", ".join(f"{count} {state}" for state, count in states.items())
    yield _title(report.name, f"{words}; {report.seconds:.1f} s")
    headings, rows = summary.cells(report)
    yield from _table(headings, [[str(cell) for cell in row] for row in rows])
    if report.remote is not None:
        words = figures.remote_words(report.remote)
        yield f"\nShared cache {escaped(report.remote.url)}: {escaped(words)}\n"
    failed = [(f"{g.group}@{g.target}", g.failure) for g in report.groups if g.failure is not None]
    if failed:
        yield from _table(
            ("failed", "code", "why", "what to do"),
            [(label, told.code, _reason(told), told.remedy) for label, told in failed],
        )
    for group in report.groups:
        if group.verify is not None and group.verify.unrun is not None:
            yield f"\n{escaped(f'{group.group}@{group.target}: {group.verify.unrun}')}\n"


def _reason(failure: Failure) -> str:
    return shortened(": ".join(part for part in (failure.where, failure.what, failure.why) if part))


def _verified(report: VerifyReport) -> Iterator[str]:
    yield _title("epctx verify", ", ".join(filter(None, (report.verdict, report.unrun))))
    rows = []
    for folder in report.folders:
        counts = Counter((finding.policy, finding.outcome) for finding in folder.findings)
        cells = (
            ", ".join(
                f"{counts[policy, outcome]} {outcome}"
                for outcome in get_args(Outcome)
                if counts[policy, outcome]
            )
            for policy in TOLD
        )
        rows.append((folder.folder, *cells))
    yield from _table(("folder", *TOLD), rows)
    failed = [
        (folder.folder, CODES[finding.policy], finding.subject, finding.message, finding.remedy)
        for folder in report.folders
        for finding in folder.findings
        if finding.outcome == "fail"
    ]
    if failed:
        yield from _table(("failed in", "code", "file", "why", "what to do"), failed)


def _title(name: str, words: str) -> str:
    return f"### {escaped(name)}\n\n{escaped(words)}\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table without empty columns, cut after its first rows."""
    columns = [number for number in range(len(headings)) if any(row[number] for row in rows)]
    yield _line(headings[number] for number in columns)
    yield _line("---" for _ in columns).replace("\\", "")
    for row in rows[:_ROWS]:
        yield _line(row[number] for number in columns)
    yield f"\nand {len(rows) - _ROWS} more\n" if len(rows) > _ROWS else ""


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(escaped(cell) for cell in cells)} |"


def escaped(text: str) -> str:
    """Return a text as one line of Markdown, with marks and HTML escaped."""
    short = text if len(text) <= _CELL else f"{text[:_CELL]} …"
    return _MARKS.sub(r"\\\1", visible(" ".join(short.split())))


def _append(lines: Iterable[str]) -> None:
    """Append to the summary; a failure to write is only a warning."""
    path = Path(os.environ[_VARIABLE])
    text = "\n".join([*lines, ""]).encode(errors="replace")
    if len(text) > _MOST:
        text = text[:_MOST].decode(errors="ignore").rpartition("\n")[0].encode() + b"\n\n...\n"
    try:
        with path.open("ab") as stream:
            stream.write(text)
    except OSError as error:
        print(f"warning: {_VARIABLE}: {path}: {error.strerror}", file=sys.stderr)
