"""What a build would do about each group: nothing, publish from the cache, or run, and why."""

from __future__ import annotations

from msgspec.structs import replace

from epctx.engine.lookup import Lookup
from epctx.engine.output.place import Place
from epctx.engine.output.published import contents_of, difference
from epctx.engine.plan import PlannedGroup
from epctx.engine.state import GroupState


def assess(planned: PlannedGroup, lookup: Lookup, place: Place) -> GroupState:
    """Look at a group.

    Raises:
        ModelError: a source is missing.
        ProviderUnavailable: an EP is not installed.
        ManifestError: an EP refuses its options; a pass does not exist.
    """
    group = planned.group
    sessions = tuple(
        lookup.session(group, session, [lookup.built(source, group) for source in session.models])
        for session in planned.session_groups
    )
    known = GroupState(planned=planned, sessions=sessions)
    if not all(session.complete for session in sessions):
        return known
    verified = tuple(lookup.verification(group, session) for session in sessions)
    return replace(
        known,
        verified=verified,
        whole=lookup.folder(verified, contents_of(known.files)),
        published=difference(place.group(planned.target, group.name), known.files, lookup.digests),
    )
