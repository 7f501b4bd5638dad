"""What a build would do about each group: nothing, publish from the cache, or run, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from epctx.engine.lookup import Lookup
from epctx.engine.output.place import Place
from epctx.engine.output.published import contents_of, difference
from epctx.engine.plan import PlannedGroup
from epctx.engine.results import joined
from epctx.engine.state import Compiled, Verified
from epctx.files.outputs import OutputFile
from epctx.verification.findings import FolderReport


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """A group, and what of it is known.

    Attributes:
        sessions: in the plan's order.
        verified: of each, where all of them are compiled.
        whole: of the folder beside them, likewise.
        published: why what is published is not what it should be; None: it is.
    """

    planned: PlannedGroup
    sessions: tuple[Compiled, ...]
    verified: tuple[Verified, ...] = ()
    whole: Verified | None = None
    published: str | None = "it is not compiled"

    @property
    def up_to_date(self) -> bool:
        """Nothing is to be done."""
        return self.published is None and self.checked

    @property
    def checked(self) -> bool:
        """Everything that is compiled was verified."""
        parts = (self.whole, *self.verified)
        return all(part is not None and part.action is not None for part in parts)

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """Every output but SHA256SUMS, where all of it is compiled."""
        return files_of(self.sessions)

    @property
    def report(self) -> FolderReport:
        """What was verified."""
        parts = (part.action for part in (self.whole, *self.verified) if part is not None)
        return joined(self.planned.label, (a.result for a in parts if a is not None))


def assess(planned: PlannedGroup, lookup: Lookup, place: Place) -> Assessment:
    """Look at a group.

    Raises:
        ModelError: a source is missing.
        ProviderUnavailable: an EP is not installed.
        ManifestError: an EP refuses its options; a pass does not exist.
    """
    group = planned.group
    sessions = tuple(
        lookup.session(
            group, session, [lookup.model(source, group.optimize) for source in session.models]
        )
        for session in planned.session_groups
    )
    known = Assessment(planned=planned, sessions=sessions)
    if not all(session.complete for session in sessions):
        return known
    verified = tuple(lookup.verification(group, session) for session in sessions)
    return replace(
        known,
        verified=verified,
        whole=lookup.folder(verified, contents_of(known.files)),
        published=difference(place.group(planned.target, group.name), known.files, lookup.digests),
    )


def files_of(sessions: Sequence[Compiled]) -> tuple[OutputFile, ...]:
    """The files of compiled session groups, in their order."""
    actions = (session.action for session in sessions)
    return tuple(f for a in actions if a is not None for f in a.result.output.files)
