"""What failed, a line each, before anything else."""

from __future__ import annotations

from dataclasses import dataclass

from epctx.commands.report.tables import label
from epctx.engine.report import BuildReport
from epctx.errors import Failure


@dataclass(frozen=True, kw_only=True)
class FailedRow:
    """A group that failed. `number`: its place in the report, from 1."""

    number: int
    group: str
    failure: Failure | None


@dataclass(frozen=True, kw_only=True)
class Failures:
    """All groups of which nothing came. `skipped`: not tried to the end as another one failed."""

    rows: tuple[FailedRow, ...]
    skipped: int


def failures(report: BuildReport) -> Failures:
    """The groups that failed, in the report's order, and how many were skipped."""
    return Failures(
        rows=tuple(
            FailedRow(number=number, group=label(group), failure=group.failure)
            for number, group in enumerate(report.groups, 1)
            if group.state == "failed"
        ),
        skipped=sum(group.state == "skipped" for group in report.groups),
    )
