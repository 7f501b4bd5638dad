"""The verify action of a group, after its last session group and before publication."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from epctx import limits
from epctx.engine.actions import checks
from epctx.engine.actions.base import Actions
from epctx.engine.actions.compile import Compiling
from epctx.engine.actions.simulate import Simulation
from epctx.engine.output.place import Place
from epctx.engine.output.published import contents_of
from epctx.engine.progress import GroupProgress
from epctx.engine.results import part_of, refuse, without
from epctx.engine.scheduler import Scheduler
from epctx.engine.state import GroupState, Staged, Verified
from epctx.files import outputs
from epctx.stages.exclusion import refuse_unmatched
from epctx.verification.findings import FolderReport


def verify(
    actions: Actions,
    scheduler: Scheduler,
    compiling: Compiling,
    place: Place,
    progress: GroupProgress,
    staged: Sequence[Staged],
) -> GroupState:
    """Write SHA256SUMS of a staged folder, and verify what was not verified before.

    Returns:
        The group, all of which is known, with its progress.

    Raises:
        VerificationError: a check failed; what was found is not stored.
        EpctxError: what the job raised.
    """
    planned, name = progress.planned, progress.planned.group.name
    group = GroupState(
        planned=planned, sessions=tuple(each.compiled for each in staged), progress=progress
    )
    refuse_unmatched(
        [
            unmatched
            for session in group.sessions
            if session.action is not None
            for unmatched in session.action.result.unmatched
        ],
        where=f"model group {name}",
    )
    folder = place.staged(planned.target, name)
    if not any(each.checked for each in staged):
        outputs.write_sums(folder, group.files)
    outputs.sync_files(
        folder / file.name for each in staged if each.restored for file in each.compiled.files
    )
    group = _known(actions, group, [each.verified for each in staged])
    ran = not group.checked
    if ran:
        assert group.whole is not None
        with actions.alone(progress, name, group.whole.key):
            again = [actions.lookup.verification(planned.group, s) for s in group.sessions]
            group = _known(actions, group, again)
            ran = not group.checked
            if ran:
                group = _run(actions, scheduler, compiling, place, group, staged)
    assert group.whole is not None
    progress.did("verify", name, group.whole.key, actions.origin(group.whole.key, ran=ran))
    for session, verified in zip(group.sessions, group.verified, strict=True):
        actions.note(progress, "verify", session.session.label, verified.key)
    return group


def _known(actions: Actions, group: GroupState, verified: Sequence[Verified]) -> GroupState:
    """The group with what is known of its verification: by session group, and beside them."""
    whole = actions.lookup.folder(verified, contents_of(group.files))
    return replace(group, verified=tuple(verified), whole=whole)


def _run(
    actions: Actions,
    scheduler: Scheduler,
    compiling: Compiling,
    place: Place,
    group: GroupState,
    staged: Sequence[Staged],
) -> GroupState:
    """Verify what is not known, and store it."""
    planned, progress, whole = group.planned, group.progress, group.whole
    assert progress is not None and whole is not None
    new = [s for s, known in zip(staged, group.verified, strict=True) if known.action is None]
    passed = [each for each in staged if each not in new]
    found = staged[0].checked
    if found is None:
        request = checks.request(
            progress,
            place.staged(planned.target, planned.group.name),
            skips_numbers=actions.lookup.skips(planned.group),
            written=group.files,
            recorded=compiling.recorded(progress) if any(each.recorded for each in new) else None,
            computed=compiling.computed(progress),
            passed=[name for each in passed for name in each.compiled.outputs],
        )
        found = Simulation(actions, scheduler, progress, new, request).run()
    progress.found = found
    if any(f.outcome == "fail" and f.policy == "integrity" for f in found.findings):
        _forget(actions, staged)
    refuse(found)
    verified = tuple(
        known
        if known.action is not None
        else _stored(actions, known, part_of(found, session.outputs))
        for session, known in zip(group.sessions, group.verified, strict=True)
    )
    everything = [name for session in group.sessions for name in session.outputs]
    return replace(
        group, verified=verified, whole=_stored(actions, whole, without(found, everything))
    )


def _forget(actions: Actions, staged: Sequence[Staged]) -> None:
    """What a compile told of its files is not what they are: the next build is not to believe it.

    What else fails is what it is, and would be made again the same.
    """
    for each in staged:
        if actions.lookup.cache is not None and each.compiled.key is not None:
            actions.lookup.cache.refuse(each.compiled.key, "tells of other files than it made")


def _stored(actions: Actions, verified: Verified, report: FolderReport) -> Verified:
    """Store a verdict, unless a limit decided it: no key has limits, so it would be final."""
    assert verified.record is not None
    limited = any(
        limits.PREFIX in f"{each.message} {each.remedy}"
        for each in report.findings
        if each.outcome == "not checkable"
    )
    action = actions.store(verified.key, "verify", verified.record, report, keep=not limited)
    return replace(verified, action=action)
