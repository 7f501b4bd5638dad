"""Verification of a group, after its last session group and before publication."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from epctx import limits
from epctx.engine.actions.base import Actions
from epctx.engine.actions.numbers import Numbers, request
from epctx.engine.output.place import OutputPaths
from epctx.engine.progress import GroupProgress
from epctx.engine.results import part_of, refuse, without
from epctx.engine.state import GroupState, Known, SessionState
from epctx.files import outputs
from epctx.stages.exclusion import refuse_unmatched
from epctx.verification.findings import FolderReport


def verify(
    actions: Actions,
    numbers: Numbers,
    place: OutputPaths,
    progress: GroupProgress,
    sessions: Sequence[SessionState],
) -> GroupState:
    """Write SHA256SUMS of a staged folder, and verify new session groups.

    Returns:
        The complete state of the group, with its progress.

    Raises:
        VerificationError: a check failed; its report is not stored.
        EpctxError: the job raised it.
    """
    planned, name = progress.planned, progress.planned.group.name
    group = GroupState(planned=planned, sessions=tuple(sessions), progress=progress)
    refuse_unmatched(
        [each for s in sessions if s.result is not None for each in s.result.unmatched],
        where=f"model group {name}",
    )
    if not any(each.checked for each in sessions):
        outputs.write_sums(place.staged(planned.target, name), group.files)
    group, _ = actions.once(
        progress,
        "verify",
        name,
        lambda: actions.lookup.verified(group),
        lambda state: _run(actions, numbers, place, progress, state),
    )
    for session, verified in zip(group.sessions, group.verified, strict=True):
        actions.note(progress, "verify", session.session.label, verified.key)
    return group


def _run(
    actions: Actions,
    numbers: Numbers,
    place: OutputPaths,
    progress: GroupProgress,
    group: GroupState,
) -> GroupState:
    """Verify new session groups, and store the reports."""
    planned, whole = group.planned, group.whole
    assert whole is not None
    both = list(zip(group.sessions, group.verified, strict=True))
    new = [session for session, verification in both if verification.stored is None]
    verify_request = request(
        progress,
        place.staged(planned.target, planned.group.name),
        skips_numbers=actions.lookup.skips(planned.group),
        written=group.files,
        passed=[
            name
            for session, verification in both
            if verification.stored
            for name in session.outputs
        ],
    )
    report = numbers.verify(progress, new, verify_request)
    progress.found = report
    if any(f.outcome == "fail" and f.policy == "integrity" for f in report.findings):
        _forget(actions, group.sessions)
    refuse(report, planned.group.execution_providers)
    verified = tuple(
        verification
        if verification.stored
        else _stored(actions, verification, part_of(report, session.outputs))
        for session, verification in both
    )
    everything = [name for session in group.sessions for name in session.outputs]
    return replace(
        group, verified=verified, whole=_stored(actions, whole, without(report, everything))
    )


def _forget(actions: Actions, sessions: Sequence[SessionState]) -> None:
    """Refuse the cached compiles of a group, since their files differ from their digests.

    Other failures keep the cached compiles, since new ones would give the same files.
    """
    for each in sessions:
        if actions.lookup.cache is not None and each.key is not None:
            actions.lookup.cache.refuse(each.key, "lists other digests than its files have")


def _stored(
    actions: Actions, state: Known[FolderReport], report: FolderReport
) -> Known[FolderReport]:
    """Store a report, unless it depends on a limit, since limits are not in keys."""
    limited = any(
        limits.PREFIX in f"{each.message} {each.remedy}"
        for each in report.findings
        if each.outcome == "not checkable"
    )
    return actions.store(state, "verify", report, keep=not limited)
