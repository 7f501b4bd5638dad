"""After the last session group of a group: sums and checks, before publication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from epctx.engine.actions import checks
from epctx.engine.actions.base import Actions
from epctx.engine.actions.compile import Compiling
from epctx.engine.group import Progress
from epctx.engine.output.place import Place
from epctx.engine.output.published import contents_of
from epctx.engine.plan import PlannedGroup
from epctx.engine.results import joined, part_of, refuse, without
from epctx.engine.state import Made, Verified
from epctx.files import outputs
from epctx.files.digest import Digest
from epctx.stages.exclusion import refuse_unmatched
from epctx.verification.findings import FolderReport


def settle(
    actions: Actions, compiling: Compiling, place: Place, progress: Progress, made: Sequence[Made]
) -> FolderReport:
    """Write SHA256SUMS of a staged folder, and verify what was not verified before.

    Raises:
        VerificationError: a check failed; what was found is not stored.
        EpctxError: what the job raised.
    """
    planned = progress.planned
    refuse_unmatched(
        [found for each in made for found in each.result.unmatched],
        where=f"model group {planned.group.name}",
    )
    folder = place.staged(planned.target, planned.group.name)
    files = [file for each in made for file in each.result.output.files]
    if not any(each.checked for each in made):
        outputs.write_sums(folder, files)
    outputs.sync_files(
        folder / file.name for each in made if each.restored for file in each.result.output.files
    )
    contents = contents_of(files)
    known = _look(actions, [each.verified for each in made], contents)
    ran = not known.complete
    if ran:
        with actions.alone(progress, planned.group.name, known.whole.key):
            sessions = [actions.lookup.verification(planned.group, m.compiled) for m in made]
            known = _look(actions, sessions, contents)
            ran = not known.complete
            if ran:
                known = _verify(actions, compiling, place, progress, made, known)
    progress.did("verify", planned.group.name, known.whole.key, ran=ran)
    for each, session in zip(made, known.sessions, strict=True):
        actions.note(progress, "verify", each.compiled.session.label, session.key)
    return known.report(planned)


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What is known of a folder's verification: by session group, and beside them."""

    sessions: tuple[Verified, ...]
    whole: Verified

    @property
    def complete(self) -> bool:
        """Nothing is to be verified."""
        return all(part.action is not None for part in (self.whole, *self.sessions))

    def report(self, planned: PlannedGroup) -> FolderReport:
        """All of it."""
        parts = (part.action for part in (self.whole, *self.sessions))
        return joined(planned.label, (action.result for action in parts if action is not None))


def _look(actions: Actions, sessions: Sequence[Verified], contents: Mapping[str, Digest]) -> _Known:
    return _Known(sessions=tuple(sessions), whole=actions.lookup.folder(sessions, contents))


def _verify(
    actions: Actions,
    compiling: Compiling,
    place: Place,
    progress: Progress,
    made: Sequence[Made],
    known: _Known,
) -> _Known:
    """Verify what is not known, and store it."""
    planned, group = progress.planned, progress.planned.group
    new = [m for m, session in zip(made, known.sessions, strict=True) if session.action is None]
    passed = [m for m in made if m not in new]
    found = made[0].checked
    if found is None:
        request = checks.request(
            progress,
            place.staged(planned.target, group.name),
            skips_numbers=actions.lookup.skips(group),
            written=[file for each in made for file in each.result.output.files],
            recorded=compiling.recorded(progress) if any(each.recorded for each in new) else None,
            passed=[name for each in passed for name in each.compiled.outputs],
        )
        with checks.lane(actions, progress) as lane, lane.worker() as worker:
            found = progress.run(worker, group.name, request, FolderReport)
    if any(f.outcome == "fail" and f.policy == "integrity" for f in found.findings):
        _forget(actions, made)
    refuse(planned.label, found)
    sessions = [
        session
        if session.action is not None
        else _stored(actions, session, part_of(found, each.compiled.outputs))
        for each, session in zip(made, known.sessions, strict=True)
    ]
    everything = [name for each in made for name in each.compiled.outputs]
    whole = _stored(actions, known.whole, without(found, everything))
    return _Known(sessions=tuple(sessions), whole=whole)


def _forget(actions: Actions, made: Sequence[Made]) -> None:
    """What a compile told of its files is not what they are: the next build is not to believe it.

    What else fails is what it is, and would be made again the same.
    """
    for each in made:
        if actions.lookup.cache is not None and each.compiled.key is not None:
            actions.lookup.cache.refuse(each.compiled.key, "tells of other files than it made")


def _stored(actions: Actions, verified: Verified, report: FolderReport) -> Verified:
    return replace(verified, action=actions.store(verified.key, "verify", verified.record, report))
