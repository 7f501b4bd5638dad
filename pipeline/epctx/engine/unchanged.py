"""Groups that were up to date, and of which nothing has changed since: one look-up a group.

A build that finds groups up to date remembers of each what it was looked at with (its part of the
manifest and the toolchain, as a digest), every file that the look depended on with its identity
(sources, outputs and their folder, the records of its actions), and what was found. Where all of
that is as it was, the look would find the same: no key is made, no record of an action is read.

It stands on the same ground as remembered digests (`files.identity`), and is used where they are.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from epctx import codec
from epctx._version import __version__
from epctx.cache import Action
from epctx.cache.records import Records
from epctx.engine import noop
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import Place
from epctx.engine.output.published import contents_of
from epctx.engine.plan import PlannedGroup
from epctx.engine.state import Compiled, GroupState, Verified
from epctx.engine.up_to_date import assess
from epctx.errors import EpctxError
from epctx.files import digest, identity
from epctx.files.digest import Digest
from epctx.files.identity import Identity
from epctx.lockfile.types import Lock
from epctx.verification.findings import FolderReport

T = TypeVar("T")
_Checked: TypeAlias = tuple[Digest, Action[FolderReport]]
"""The key of a `state.Verified`, and what is there of it."""


class _Found(Struct, frozen=True, kw_only=True):
    """What a `state.GroupState` that is up to date says beside what was planned.

    Without the records of its keys: they are of use where something is to be done.
    """

    sessions: tuple[Compiled, ...]
    verified: tuple[_Checked, ...]
    whole: _Checked


class _Group(Struct, frozen=True, kw_only=True):
    """What is remembered of a group.

    Attributes:
        asked: a digest of what it was looked at with.
        until: seconds since 1970: then gc is to see that its results are of use.
        files: each with the text of its identity.
        found: a `_Found`.
    """

    asked: Digest
    until: float
    files: dict[str, str]
    found: msgspec.Raw


class _Known(Struct, kw_only=True):
    """What is remembered of a manifest.

    Attributes:
        groups: by their labels.
        lock: a digest of what the lock says, and the text of the identity of its file.
    """

    groups: dict[str, _Group] = field(default_factory=dict)
    lock: tuple[Digest, str] | None = None


class Unchanged:
    """Looks at the groups of a manifest, by what is remembered of them first.

    Args:
        records: of the cache.
        lookup: whose digests may be remembered.
        place: where they are published.
        manifest: its path: all of its groups are remembered together.
        watched: is told of files that were found unchanged; None: nobody wants to know.
    """

    def __init__(
        self,
        records: Records,
        lookup: Lookup,
        place: Place,
        manifest: Path,
        watched: noop.Watched | None = None,
    ) -> None:
        self._records = records
        self._lookup = lookup
        self._place = place
        self._watched = watched
        self._begun = time.time()
        self._name = digest.of_json(["groups", str(manifest), str(place.root)]).hex
        self._toolchains: dict[bytes, bytes] = {}
        self._changed = False

    @cached_property
    def _known(self) -> _Known:
        return self._records.read(noop.KIND, self._name, _Known) or _Known()

    def assess(self, planned: PlannedGroup) -> GroupState:
        """As `up_to_date.assess`, and raises what it raises."""
        asked: Digest | None = None
        with contextlib.suppress(EpctxError, OSError, msgspec.MsgspecError):
            asked = self._asked(planned)
            found = self._recall(planned, asked)
            if found is not None:
                return found
        state = assess(planned, self._lookup, self._place)
        if asked is not None and state.up_to_date:
            with contextlib.suppress(OSError):
                self._remember(state, asked)
        return state

    def is_written(self, lock: Lock, path: Path) -> bool:
        """Whether the lock at a path is known to say this, without a look into it."""
        known = self._known.lock
        return known is not None and known == (_digest(lock), noop.stamp(path))

    def written(self, lock: Lock, path: Path) -> None:
        """Remember that the lock at a path was read, and says this."""
        with contextlib.suppress(OSError):
            now = identity.of_path(path)
            if self._lasts(path, now):
                self._known.lock = (_digest(lock), now.text)
                self._changed = True

    def save(self) -> None:
        """Write what is new.

        Raises:
            StorageError: the cache cannot be written.
        """
        if self._changed:
            self._records.write(noop.KIND, self._name, self._known)

    def _asked(self, planned: PlannedGroup) -> Digest:
        """A digest of what a look at a group begins with, beside files."""
        group, lookup = planned.group, self._lookup
        listed = codec.encode((group.execution_providers, group.optimize.passes))
        if listed not in self._toolchains:
            self._toolchains[listed] = codec.encode(self._toolchain(planned))
        own = codec.encode((planned.target, group, lookup.runs_models))
        return digest.of_chunks((own, self._toolchains[listed]))

    def _toolchain(self, planned: PlannedGroup) -> object:
        toolchain, specs = self._lookup.toolchain, planned.group.execution_providers
        return (
            __version__,
            toolchain.own(("engine/*.py", "keys/*.py")),
            [toolchain.of(action) for action in ("optimize", "compile", "verify")],
            [toolchain.provider(spec) for spec in specs],
            toolchain.devices(specs),
            toolchain.passes(planned.group.optimize.passes),
        )

    def _recall(self, planned: PlannedGroup, asked: Digest) -> GroupState | None:
        known = self._known.groups.get(planned.label)
        if known is None or known.asked != asked or time.time() > known.until:
            return None
        if any(noop.stamp(path) != text for path, text in known.files.items()):
            return None
        found = codec.decode(bytes(known.found), _Found)
        if self._watched is not None:
            self._watched.seen(known.files)
            self._watched.note(set(map(os.path.dirname, known.files)))
        return GroupState(
            planned=planned,
            sessions=found.sessions,
            verified=tuple(Verified(key=key, action=action) for key, action in found.verified),
            whole=Verified(key=found.whole[0], action=found.whole[1]),
            published=None,
        )

    def _remember(self, state: GroupState, asked: Digest) -> None:
        planned = state.planned
        group = planned.group
        if group.quantize is not None or any(m.as_reference is not None for m in group.models):
            return  # what it is made of is not known here
        if self._lookup.toolchain.passes(planned.group.optimize.passes):
            return  # the lock has what is in the records of keys only
        now = {path: identity.of_path(path) for path in self._files(state)}
        found = _found(state)
        if found is None or not all(self._lasts(path, each) for path, each in now.items()):
            return
        self._known.groups[planned.label] = _Group(
            asked=asked,
            until=self._begun + noop.LASTING,
            files={str(path): each.text for path, each in now.items()},
            found=msgspec.Raw(codec.encode(found)),
        )
        self._changed = True

    def _lasts(self, path: Path, now: Identity) -> bool:
        """A file is as it was before it was looked at, and any change of it would show."""
        return now.settled_at(self._begun) and identity.tells(path, now.text)

    def _files(self, state: GroupState) -> Iterator[Path]:
        """All that was looked at; of a folder the time tells of other files in it."""
        planned = state.planned
        for session in state.sessions:
            for model in session.models:
                assert model.found is not None
                yield from model.found.files(model.source)
        yield from planned.group.verify.inputs.files
        folder = self._place.group(planned.target, planned.group.name)
        yield folder
        yield from (folder / name for name in contents_of(state.files))
        for key in _keys(state):
            yield self._records.path("actions", key.hex)


def _digest(lock: Lock) -> Digest:
    return digest.of_bytes(codec.encode(lock))


def _keys(state: GroupState) -> Iterator[Digest]:
    """The keys of all actions of a group that is up to date."""
    for session in state.sessions:
        yield from (model.key for model in session.models if model.key is not None)
        yield from (key for key in (session.key, session.recording_key) if key is not None)
    yield from (part.key for part in (*state.verified, state.whole) if part is not None)


def _found(state: GroupState) -> _Found | None:
    """What is remembered of a group; None: it is not up to date."""
    parts = [_checked(part) for part in (state.whole, *state.verified) if part is not None]
    whole, *verified = [part for part in parts if part is not None]
    return _Found(
        sessions=tuple(map(_bare_session, state.sessions)), verified=tuple(verified), whole=whole
    )


def _checked(verified: Verified) -> _Checked | None:
    return None if verified.action is None else (verified.key, _bare(verified.action))


def _bare_session(session: Compiled) -> Compiled:
    models = [
        replace(model, record=None, action=model.action and _bare(model.action))
        for model in session.models
    ]
    return replace(
        session,
        models=tuple(models),
        record=None,
        action=session.action and _bare(session.action),
        recording_record=None,
        recording=session.recording and _bare(session.recording),
    )


def _bare(action: Action[T]) -> Action[T]:
    return replace(action, record=msgspec.Raw(b"{}"))
