"""What is asked of verify before a group is published, and which worker is to carry it out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from epctx.engine.actions.base import Actions
from epctx.engine.group import Progress
from epctx.files.outputs import OutputFile
from epctx.verification.findings import POLICIES
from epctx.verification.request import VerifyRequest
from epctx.worker.pool import Lane


def request(
    progress: Progress,
    folder: Path,
    *,
    skips_numbers: bool,
    written: Sequence[OutputFile] = (),
    recorded: Path | None = None,
    passed: Sequence[str] = (),
) -> VerifyRequest:
    """Every policy for a staged folder, but numbers where the build skips them."""
    return VerifyRequest(
        group=progress.planned.group,
        folder=folder,
        label=progress.planned.label,
        recorded=recorded,
        passed=tuple(passed),
        written=tuple(written),
        policies=tuple(p for p in POLICIES if p != "numbers" or not skips_numbers),
    )


def expect(actions: Actions, progress: Progress) -> None:
    """The group will be verified soon, in a process of its own where its EPs need that."""
    actions.expect_worker(progress.planned.group, _label(progress))


def lane(actions: Actions, progress: Progress) -> AbstractContextManager[Lane]:
    """Where a group is verified."""
    return actions.lane(progress.planned.group, _label(progress))


def _label(progress: Progress) -> str:
    return f"{progress.planned.label}-verify"
