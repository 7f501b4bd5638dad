"""What is asked of verify before a group is published, and which worker is to carry it out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from epctx.engine.actions.base import Actions
from epctx.engine.executor import Lane
from epctx.engine.progress import GroupProgress
from epctx.files.outputs import OutputFile
from epctx.verification.findings import POLICIES
from epctx.verification.request import VerifyRequest


def request(
    progress: GroupProgress,
    folder: Path,
    *,
    skips_numbers: bool,
    written: Sequence[OutputFile] = (),
    recorded: Path | None = None,
    computed: Path | None = None,
    passed: Sequence[str] = (),
) -> VerifyRequest:
    """Every policy for a staged folder, but numbers where the build skips them."""
    return VerifyRequest(
        group=progress.group,
        folder=folder,
        label=progress.label,
        recorded=recorded,
        computed=computed,
        passed=tuple(passed),
        written=tuple(written),
        policies=tuple(p for p in POLICIES if p != "numbers" or not skips_numbers),
    )


def expect(actions: Actions, progress: GroupProgress) -> None:
    """The group will be verified soon, in a process of its own where its EPs need that."""
    actions.expect_lane(progress.planned.group.execution_providers, _label(progress))


def lane(actions: Actions, progress: GroupProgress) -> AbstractContextManager[Lane]:
    """Where a group is verified."""
    return actions.lane(progress.planned.group.execution_providers, _label(progress))


def _label(progress: GroupProgress) -> str:
    return f"{progress.label}-verify"
