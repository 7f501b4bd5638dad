"""A build report in a notebook: one small table, which needs nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

from epctx.commands.report import overview
from epctx.engine.report import BuildReport, GroupReport
from epctx.text import size_words

_ROWS: Final = 50
"""Groups that are shown; what failed comes first."""
_HEADINGS: Final = ("group", "state", "models", "files", "size", "largest error", "why")


def html(report: BuildReport) -> str:
    """The report's groups as a table, with what failed and why."""
    states = Counter(group.state for group in report.groups)
    words = ", ".join(f"{count} {state}" for state, count in states.items())
    groups = sorted(report.groups, key=lambda group: group.state != "failed")
    more = f"<p>and {len(groups) - _ROWS} more</p>" if len(groups) > _ROWS else ""
    rows = "".join(_row("td", _cells(group)) for group in groups[:_ROWS])
    return (
        f"<p><b>{escape(report.name)}</b>: {escape(words)}, in {report.seconds:.1f} s</p>"
        f"<table><thead>{_row('th', _HEADINGS)}</thead><tbody>{rows}</tbody></table>{more}"
    )


def _cells(group: GroupReport) -> Iterator[str]:
    yield f"{group.group}@{group.target}"
    yield group.state
    yield group.counted
    yield str(len(group.files))
    yield size_words(sum(file.size for file in group.files))
    numbers = group.verify.numbers if group.verify is not None else ()
    yield overview.error_words(overview.error(numbers))
    told = group.failure
    yield f"{told.code}: {told.what}; {told.remedy}" if told is not None else ""


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
