"""What failed, a line each, before anything else."""

from __future__ import annotations

from msgspec import Struct

from epctx.commands.report.tables import label
from epctx.engine.report import BuildReport
from epctx.errors import Failure


class FailedRow(Struct, frozen=True, kw_only=True):
    """A group that failed. `number`: its place in the report, from 1."""

    number: int
    group: str
    failure: Failure | None


class Failures(Struct, frozen=True, kw_only=True):
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
