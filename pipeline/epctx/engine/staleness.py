"""Staleness: what a build would do about each group, and why (design section 9).

The cache keeps one record for each group of a manifest: the last key of each action, the build
time, and the last check that found the group up to date. The check consists of a digest of its
inputs besides files (the group's part of the manifest, the toolchain), the identity of every file
that it depended on (sources, outputs and their folder, the records of its actions), and its result.
While all of that is unchanged, another check would find the same, so no key is made and no record
of an action is read. Remembered digests rely on the same identities (`files.identity`).
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from epctx import codec, lockfile
from epctx._version import __version__
from epctx.actions.compile import Compile
from epctx.actions.compose import Compose
from epctx.actions.optimize import Optimize
from epctx.actions.verify import Verify
from epctx.cache import StoredAction
from epctx.cache.location import BEFORE
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import OutputPaths, contents_of, difference
from epctx.engine.plan import PlannedComposition, PlannedGroup
from epctx.engine.state import (
    CompositionState,
    GroupState,
    Known,
    ModelState,
    PieceState,
    QuantizeState,
    SessionState,
)
from epctx.errors import EpctxError, Failure
from epctx.files import digest, identity
from epctx.files.digest import Digest
from epctx.files.identity import Identity
from epctx.keys import Change, between, records
from epctx.keys.records import ComposedModel
from epctx.lockfile.types import Lock, LockedSource
from epctx.text import Brief
from epctx.verification.findings import FolderReport

R = TypeVar("R")
State = Literal["up to date", "runs", "depends"]
_KIND: Final = "groups"
LASTING: Final = 86_400.0
"""Seconds that a remembered check is valid. After that, a new check tells gc that its results are
in use.
"""
_DATA = re.compile(r"data\[(\d+)\]")
_PROVIDER = re.compile(r"providers\[(\d+)\]\.(.*)")


def look(planned: PlannedGroup, lookup: Lookup, place: OutputPaths) -> GroupState:
    """Make the keys of a group's actions, and look up their results and the published outputs.

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
    state = GroupState(planned=planned, sessions=sessions)
    if not all(session.complete for session in sessions):
        return state
    folder = place.group(planned.target, group.name)
    changed = difference(folder, state.files, lookup.digests)
    return replace(lookup.verified(state), published=changed)


def look_at_composition(
    planned: PlannedComposition,
    groups: Mapping[str, GroupState],
    lookup: Lookup,
    place: OutputPaths,
) -> CompositionState:
    """Make the key of a composition whose groups are built, and look up its result and outputs.

    Raises:
        ModelError: a file with inputs cannot be read.
    """
    action = _composition(planned, groups, lookup)
    compose = lookup.find(action)
    state = CompositionState(planned=planned, groups=groups, request=action, compose=compose)
    required = planned.composition.verify.require
    report = None if compose.result is None else compose.result.verify
    if report is None or report != report.with_required(required):
        return replace(state, compose=replace(compose, stored=None))
    folder = place.group(planned.target, planned.composition.name)
    return replace(state, published=difference(folder, state.files, lookup.digests))


def _composition(
    planned: PlannedComposition, groups: Mapping[str, GroupState], lookup: Lookup
) -> Compose:
    composition, settings = planned.composition, planned.composition.verify
    parts: list[ComposedModel] = []
    for part in composition.parts:
        state = groups[part.group]
        compiled = state.session(part.model)
        model = next(m for m in compiled.models if m.source.name == part.model)
        assert model.found is not None
        source = (model.source, model.found)
        group = state.planned.group
        parts.append(records.part(part, group, compiled.outputs, source, lookup.toolchain))
    specs = [s for each in groups.values() for s in each.planned.group.execution_providers]
    inputs = None
    if settings.numbers != "off" and lookup.runs_models:
        inputs = records.inputs(settings.inputs, lookup.digests)
    return Compose.of(composition, parts, inputs, specs)


class _UpToDate(Struct, frozen=True, kw_only=True):
    """Remembered check of a group that was up to date.

    Attributes:
        inputs: digest of the inputs besides files.
        until: seconds since 1970 until which the check is valid.
        files: paths, with the texts of their identities.
        sessions, verified, whole: as in GroupState, without the records of their keys.
    """

    inputs: Digest
    until: float
    files: dict[str, str]
    sessions: tuple[SessionState, ...]
    verified: tuple[Known[FolderReport], ...]
    whole: Known[FolderReport]


class _Group(Struct, kw_only=True):
    """Record of a group or composition.

    Attributes:
        keys: the last key of each action, by the action and its subject as JSON.
        seconds: total time of its stages when it was compiled last.
        up_to_date: an `_UpToDate` or null, decoded on use.
    """

    keys: dict[str, Digest] = field(default_factory=dict)
    seconds: float | None = None
    up_to_date: msgspec.Raw = msgspec.Raw(b"null")


class _Manifest(Struct, kw_only=True):
    """Records of a manifest.

    Attributes:
        path: path of the manifest; the record's name is a digest of it.
        groups: records by label.
        lock: digest of the lock, and the text of the identity of its file.
        report: digest of the planned part of the report.
    """

    path: str
    groups: dict[str, _Group] = field(default_factory=dict)
    lock: tuple[Digest, str] | None = None
    report: Digest | None = None


class Memo:
    """Records of one manifest in the cache of `lookup`; empty without a cache. Thread-safe.

    The first use reads the records. It happens under the lock of the output, so nobody else writes
    them at that time.

    Args:
        lookup: makes keys and finds results.
        place: paths of the published groups.
        manifest: path of the manifest.
        trusting: whether a remembered check replaces a new one.
    """

    def __init__(
        self, lookup: Lookup, place: OutputPaths, manifest: Path, *, trusting: bool = True
    ) -> None:
        self.lookup = lookup
        self._place = place
        self._manifest = manifest
        self._path = manifest.as_posix()
        self._trusting = trusting and lookup.cache is not None
        self._begun = time.time()
        self._toolchains: dict[bytes, bytes] = {}
        self._guard = threading.RLock()
        self._changed = False

    @cached_property
    def _known(self) -> _Manifest:
        cache, records = self.lookup.cache, None
        if cache is not None:
            records = cache.records.read(_KIND, self._name, _Manifest)
        return (
            _Manifest(path=self._path) if records is None or records.path != self._path else records
        )

    @property
    def _name(self) -> str:
        return digest.of_json(self._path).hex

    def _group(self, label: str) -> _Group:
        with self._guard:
            return self._known.groups.setdefault(label, _Group())

    def state(self, planned: PlannedGroup) -> GroupState:
        """Return the state of a group, from its record or by `look`. Raises as `look`."""
        inputs: Digest | None = None
        if self._trusting:
            with contextlib.suppress(EpctxError, OSError, msgspec.MsgspecError):
                inputs = self._inputs(planned)
                remembered = self._recall(planned, inputs)
                if remembered is not None:
                    return remembered
        state = look(planned, self.lookup, self._place)
        if inputs is not None and state.up_to_date:
            with contextlib.suppress(OSError):
                self._remember(state, inputs)
        return state

    def knows(self, action: str, subject: str) -> bool | None:
        """Tell whether an action ever ran for any group. None if only the previous cache format,
        which is not read, knew the manifest.
        """
        place, cache, name = _place_of(action, subject), self.lookup.cache, self._name
        remembered = [group.keys for group in self._known.groups.values() if group.keys]
        if not remembered and cache is not None:
            before = cache.location.folder / BEFORE / _KIND / name[:2] / name
            return None if before.exists() else False
        return any(place in keys for keys in remembered)

    def last_key(self, label: str, action: str, subject: str) -> Digest | None:
        """Return the last key of an action; None if it never ran."""
        return self._group(label).keys.get(_place_of(action, subject))

    def note_key(self, label: str, action: str, subject: str, key: Digest) -> None:
        """Remember the key of an action that ran, or whose result was used.

        Args:
            label: `group@target`.
            subject: the model, the session group or the group.
        """
        place, group = _place_of(action, subject), self._group(label)
        with self._guard:
            if group.keys.get(place) != key:
                group.keys[place] = key
                self._changed = True

    def seconds(self, label: str) -> float | None:
        """Return the total time of a group's stages when it was compiled last; None if unknown."""
        return self._group(label).seconds

    def note_seconds(self, label: str, seconds: float) -> None:
        """Remember the total time of a group's stages."""
        with self._guard:
            self._group(label).seconds = seconds
            self._changed = True

    def has_lock(self, lock: Lock, path: Path) -> bool:
        """Tell whether the file at a path is remembered to have this lock; the file is not read."""
        return self._trusting and self._known.lock == (_digest(lock), _stamp(path))

    def knows_lock(self, path: Path) -> bool:
        """Tell whether the file at a path is a lock that was read before and has not changed."""
        known = self._known.lock
        return self._trusting and known is not None and known[1] == _stamp(path)

    def note_lock(self, lock: Lock, path: Path) -> None:
        """Remember that the file at a path has this lock."""
        with contextlib.suppress(OSError):
            now = identity.of_path(path)
            if self._trusting and self._lasts(path, now):
                self._known.lock = (_digest(lock), now.text)
                self._changed = True

    def has_report(self, planned: Digest, path: Path) -> bool:
        """Tell whether the report at a path has this planned part. The file is not read: without a
        recorded digest, any existing report counts.
        """
        return self._known.report in (None, planned) and path.exists()

    def note_report(self, planned: Digest) -> None:
        """Remember the planned part of the report."""
        if self._known.report != planned:
            self._known.report, self._changed = planned, True

    def locked_source(self, path: Path) -> LockedSource | None:
        """Return the lock's entry of a source file; None if there is none."""
        return self._locked_sources.get(lockfile.relative(path, self._manifest.parent))

    @cached_property
    def _locked_sources(self) -> Mapping[str, LockedSource]:
        lock = lockfile.find(lockfile.place(self._manifest))
        return {} if lock is None else lock.sources

    def save(self) -> None:
        """Write changed records.

        Raises:
            StorageError: the cache cannot be written.
        """
        with self._guard:
            if self._changed and self.lookup.cache is not None:
                self.lookup.cache.records.write(_KIND, self._name, self._known)
            self._changed = False

    def _inputs(self, planned: PlannedGroup) -> Digest:
        """Return a digest of the inputs of a check besides files."""
        group, lookup = planned.group, self.lookup
        listed = codec.encode((group.execution_providers, group.optimize.passes))
        if listed not in self._toolchains:
            self._toolchains[listed] = codec.encode(self._toolchain(planned))
        settings = codec.encode((planned.target, group, lookup.runs_models, str(self._place.root)))
        return digest.of_chunks((settings, self._toolchains[listed]))

    def _toolchain(self, planned: PlannedGroup) -> object:
        toolchain, specs = self.lookup.toolchain, planned.group.execution_providers
        return (
            __version__,
            toolchain.own(("actions/*.py", "engine/*.py", "keys/*.py")),
            [toolchain.of(*kind.code) for kind in (Optimize, Compile, Verify)],
            [toolchain.provider(spec) for spec in specs],
            toolchain.devices(specs),
            toolchain.passes(planned.group.optimize.passes),
        )

    def _recall(self, planned: PlannedGroup, inputs: Digest) -> GroupState | None:
        remembered = self._known.groups.get(planned.label)
        if remembered is None or bytes(remembered.up_to_date) == b"null":
            return None
        up_to_date = codec.decode(bytes(remembered.up_to_date), _UpToDate)
        if up_to_date.inputs != inputs or time.time() > up_to_date.until:
            return None
        if any(_stamp(path) != text for path, text in up_to_date.files.items()):
            return None
        return GroupState(
            planned=planned,
            sessions=up_to_date.sessions,
            verified=up_to_date.verified,
            whole=up_to_date.whole,
            published=None,
        )

    def _remember(self, state: GroupState, inputs: Digest) -> None:
        group = state.planned.group
        if group.quantize is not None or any(m.as_reference is not None for m in group.models):
            return  # not all files are known here
        assert state.whole is not None
        now = {path: identity.of_path(path) for path in self._files(state)}
        if not all(self._lasts(path, each) for path, each in now.items()):
            return
        up_to_date = _UpToDate(
            inputs=inputs,
            until=self._begun + LASTING,
            files={str(path): each.text for path, each in now.items()},
            sessions=_bare(state.sessions),
            verified=_bare(state.verified),
            whole=_bare(state.whole),
        )
        with self._guard:
            self._group(state.planned.label).up_to_date = msgspec.Raw(codec.encode(up_to_date))
            self._changed = True

    def _lasts(self, path: Path, now: Identity) -> bool:
        """Tell whether a file is unchanged since the check began, and whether its identity would
        show a later change.
        """
        return now.settled_at(self._begun) and identity.tells(path, now.text)

    def _files(self, state: GroupState) -> Iterator[Path]:
        """Yield the files that the check depended on; a folder's time shows new files in it."""
        planned, cache = state.planned, self.lookup.cache
        assert cache is not None
        for session in state.sessions:
            for model in session.models:
                assert model.found is not None
                yield from model.found.files(model.source)
        yield from planned.group.verify.inputs.files
        folder = self._place.group(planned.target, planned.group.name)
        yield folder
        yield from (folder / name for name in contents_of(state.files))
        keys = _keys((state.sessions, state.verified, state.whole))
        yield from (cache.records.path("actions", each.hex) for each in keys)


def _place_of(action: str, subject: str) -> str:
    return codec.encode((action, subject)).decode()


def _stamp(path: str | os.PathLike[str]) -> str:
    """Return the text of a path's identity; empty if the path does not exist."""
    try:
        return identity.of_path(Path(path)).text
    except OSError:
        return ""


def _digest(lock: Lock) -> Digest:
    return digest.of_bytes(codec.encode(lock))


def _keys(value: object) -> Iterator[Digest]:
    """Yield the keys of all actions in a state, or in a tuple of states."""
    if isinstance(value, Known):
        yield value.key
    elif isinstance(value, tuple):
        for each in value:
            yield from _keys(each)
    elif isinstance(value, SessionState | ModelState | PieceState):
        for name in value.__struct_fields__:
            yield from _keys(getattr(value, name))


def _bare(value: Any) -> Any:
    """Return a state, or a tuple of states, without the records of their keys."""
    if isinstance(value, Known):
        stored = value.stored and replace(value.stored, record=msgspec.Raw(b"{}"))
        return replace(value, record={}, stored=stored)
    if isinstance(value, tuple):
        return tuple(map(_bare, value))
    if isinstance(value, SessionState | ModelState | PieceState):
        fields = {name: _bare(getattr(value, name)) for name in value.__struct_fields__}
        return replace(value, **fields)
    return value


class PlannedAction(Struct, frozen=True, kw_only=True):
    """An action of a group or composition.

    Attributes:
        action: optimize, quantize, cut, compile, assemble, verify, compose.
        subject: the model, the sharing group, the piece, or the group or composition as a whole.
        state: `depends` if an action before it runs, and may give the same result as before.
        because: why it runs, in words.
        key: its cache key; None if it depends on an action that has no result yet.
        changes: fields of the key's record that differ from those of the last build.
    """

    action: str
    subject: str
    state: State
    because: tuple[str, ...] = ()
    key: str | None = None
    changes: tuple[Change, ...] = ()


class GroupPlan(Brief, frozen=True, kw_only=True):
    """A group, or a composition, which has one action: compose.

    Attributes:
        eps: aliases of its EPs, in priority order.
        state: `publishes` if all results are in the cache, and the published folder differs.
        because: why it is not up to date, in words.
        cost: cost of its compiles beyond one compile of each model, in words.
        failure: why its build would fail here, as far as the EPs can tell without their libraries:
            for example, this host has no device for an EP.
        fetches: bytes to download from the shared cache.
    """

    target: str
    group: str
    eps: tuple[str, ...]
    state: Literal["up to date", "publishes", "runs"]
    because: tuple[str, ...]
    actions: tuple[PlannedAction, ...]
    cost: tuple[str, ...] = ()
    failure: Failure | None = None
    fetches: int = 0


def explain(state: GroupState, memo: Memo) -> GroupPlan:
    """Return what a build would do about a group, and why."""
    if state.failure is not None:
        return GroupPlan(
            target=state.planned.target,
            group=state.planned.group.name,
            eps=tuple(spec.alias for spec in state.planned.group.execution_providers),
            state="runs",
            because=(state.failure.head,),
            actions=(),
            failure=state.failure.failure,
        )
    return Explainer(state, memo).plan()


def explain_composition(
    planned: PlannedComposition, known: Mapping[str, GroupState], memo: Memo, place: OutputPaths
) -> GroupPlan:
    """Return what a build would do about a composition, as far as its parts are compiled.

    Args:
        known: states of the plan's groups, by label.
    """
    name = planned.composition.name
    parts = {each.group.name: known[each.label] for each in planned.groups}
    waits = [
        group
        for group, part in parts.items()
        if part.failure is not None or not all(s.complete for s in part.sessions)
    ]
    action = PlannedAction(action="compose", subject=name, state="depends")
    because: tuple[str, ...] = (f"depends on the outputs of {', '.join(waits)}",)
    state: Literal["up to date", "runs"] = "runs"
    if not waits:
        looked = look_at_composition(planned, parts, memo.lookup, place)
        last = memo.last_key(planned.label, "compose", name)
        if looked.up_to_date:
            state, because = "up to date", ()
        elif looked.published is not None:
            because = (looked.published,)
        elif last is None:
            because = (f"compose of {name}: it never ran here",)
        else:
            because = (f"compose of {name}: its parts or settings have changed",)
        action = replace(action, state=state, because=because, key=_text(looked.key))
    return GroupPlan(
        target=planned.target,
        group=name,
        eps=tuple(
            dict.fromkeys(s.alias for g in planned.groups for s in g.group.execution_providers)
        ),
        state=state,
        because=because,
        actions=(action,),
    )


class Explainer:
    """Explains the actions of one group of a plan."""

    def __init__(self, known: GroupState, memo: Memo) -> None:
        self._known = known
        self._planned = known.planned
        self._lookup = memo.lookup
        self._memo = memo

    def plan(self) -> GroupPlan:
        """Return what a build would do about the group, and why."""
        group_state, planned = self._known, self._planned
        actions = tuple(self._actions())
        state: Literal["up to date", "publishes", "runs"] = "up to date"
        because: tuple[str, ...] = ()
        if any(action.state != "up to date" for action in actions):
            state = "runs"
            because = tuple(dict.fromkeys(why for action in actions for why in action.because))
        elif group_state.published is not None:
            state, because = "publishes", (group_state.published,)
        return GroupPlan(
            target=planned.target,
            group=planned.group.name,
            eps=tuple(spec.alias for spec in planned.group.execution_providers),
            state=state,
            because=because,
            actions=actions,
            cost=tuple(self._cost()) if _compiles(actions) else (),
            failure=self._failure(actions),
            fetches=0 if state == "up to date" else self._fetches(),
        )

    def _fetches(self) -> int:
        """Count the bytes of needed results that only the shared cache has."""
        cache = self._lookup.cache
        assert cache is not None
        needed: list[Known[Any] | None] = [
            model.quantized.quantize
            for session in self._known.sessions
            for model in session.models
            if model.quantized is not None
        ]
        verified = self._known.verified or (None,) * len(self._known.sessions)
        for session, verification in zip(self._known.sessions, verified, strict=True):
            if session.result is None:
                needed += [model.optimize for model in session.models]
                needed += [piece.compile for piece in session.pieces]
                continue
            needed.append(session.compile)
            if verification is None or verification.stored is None:
                needed.append(session.recording)
        stored = [each.stored for each in needed if each is not None and each.stored is not None]
        missing = {f.digest: f.size for s in stored for f in s.files if not cache.holds(f)}
        return sum(missing.values()) if cache.remote is not None else 0

    def _cost(self) -> Iterator[str]:
        group = self._planned.group
        for spec in group.execution_providers:
            words = self._lookup.toolchain.ep(spec).cost(numbers=self._lookup.records(group))
            if words is not None:
                yield words

    def _failure(self, actions: Sequence[PlannedAction]) -> Failure | None:
        """Return why a compile would fail here; None if nothing compiles or nothing is known."""
        if not _compiles(actions):
            return None
        for spec in self._planned.group.execution_providers:
            error = self._lookup.toolchain.ep(spec).unavailable()
            if error is not None:
                return error.failure
        return None

    def _actions(self) -> Iterator[PlannedAction]:
        for session in self._known.sessions:
            for model in session.models:
                yield self._optimize(model.origin)
                if model.quantized is not None:
                    yield self._quantize(model.quantized)
            if self._planned.group.pieces is None:
                yield self._compile(session.session.label, session)
            else:
                yield from self._in_pieces(session)
        yield self._verify()

    def _in_pieces(self, session: SessionState) -> Iterator[PlannedAction]:
        label = session.session.label
        cut = PlannedAction(action="cut", subject=label, state="up to date")
        yield self.action(cut, session.cut)
        for number, piece in enumerate(session.pieces, start=1):
            yield self._compile(f"{label}.{number}", piece)
        whole = PlannedAction(action="assemble", subject=label, state="up to date")
        yield self.action(whole, session.compile)

    def _optimize(self, model: ModelState) -> PlannedAction:
        action = PlannedAction(action="optimize", subject=model.source.name, state="up to date")
        return self.action(action, model.optimize, model)

    def _quantize(self, state: QuantizeState) -> PlannedAction:
        name = state.plain.source.name
        action = PlannedAction(action="quantize", subject=name, state="up to date")
        if state.quantize is None and state.calibration is not None:
            why = f"{name} has no ranges for these samples"
            return replace(action, state="runs", because=(why,))
        return self.action(action, state.quantize)

    def action(
        self, action: PlannedAction, known: Known[Any] | None, model: ModelState | None = None
    ) -> PlannedAction:
        """Explain an action by its state, which is None if an action before it must run first."""
        if known is None:
            return replace(action, state="depends")
        action = replace(action, key=str(known.key))
        return action if known.stored is not None else self._running(action, known.record, model)

    def _by_lock(self, model: ModelState) -> str:
        """Return why an action runs for a model that this cache has never seen, as far as the lock
        tells.
        """
        source, digests = model.source, model.found
        name, locked = source.path.name, self._memo.locked_source(source.path)
        if locked is None:
            return f"{name} was never built here"
        if digests is not None and locked.digest == str(digests.model):
            return f"{name} is unchanged since the lock was written, but this cache has no result"
        return f"{name} has changed since the lock was written"

    def _compile(self, subject: str, state: SessionState | PieceState) -> PlannedAction:
        action = PlannedAction(action="compile", subject=subject, state="up to date")
        action = self.action(action, state.compile)
        if action.state == "up to date" and not state.complete:
            why = "the outputs of its sessions on these inputs were not recorded"
            return replace(action, state="runs", because=(why,))
        return action

    def _verify(self) -> PlannedAction:
        state, subject = self._known, self._planned.group.name
        action = PlannedAction(action="verify", subject=subject, state="up to date")
        if state.whole is None:
            return replace(action, state="depends")
        action = replace(action, key=str(state.whole.key))
        if state.complete:
            return action
        parts = zip(state.sessions, state.verified, strict=True)
        explained = [
            self._running(replace(action, subject=session.session.label), verified.record, None)
            for session, verified in parts
            if verified.stored is None
        ]
        reasons = [why for each in explained for why in each.because]
        return replace(
            action,
            state="runs",
            because=tuple(dict.fromkeys(reasons or ["the folder as a whole was not verified"])),
            changes=tuple(dict.fromkeys(c for each in explained for c in each.changes)),
        )

    def _running(
        self,
        action: PlannedAction,
        record: object,
        model: ModelState | None,
    ) -> PlannedAction:
        """Explain an action that runs by the changes of its record since the last run."""
        last = self._memo.last_key(self._planned.label, action.action, action.subject)
        if last is None:
            why = f"{action.action} of {action.subject}: it never ran here"
            knows = self._memo.knows(action.action, action.subject)
            if knows is None:
                why = "the cache format is new: earlier results are not read"
            elif model is not None and not knows:
                why = self._by_lock(model)
            return replace(action, state="runs", because=(why,))
        old = self._last(action)
        if old is None:
            why = f"{action.action} of {action.subject}: its last result is not in the cache"
            return replace(action, state="runs", because=(why,))
        changes = between(old.record, record)
        words = tuple(_words(change, self._planned, model) for change in changes)
        if not changes:
            unrun = action.action == "verify" and self._planned.group.verify.require
            why = "required numbers were not run" if unrun else "its result is corrupt or lost"
            words = (f"{action.action} of {action.subject}: {why}",)
        return replace(action, state="runs", because=tuple(dict.fromkeys(words)), changes=changes)

    def _last(self, action: PlannedAction) -> StoredAction[msgspec.Raw] | None:
        """Read the last run of the action; None if the cache does not have it."""
        last = self._memo.last_key(self._planned.label, action.action, action.subject)
        cache = self._lookup.cache
        if last is None or cache is None:
            return None
        return cache.records.read("actions", last.hex, StoredAction[msgspec.Raw])


def _compiles(actions: Sequence[PlannedAction]) -> bool:
    compiling = ("compile", "cut")
    return any(each.action in compiling and each.state != "up to date" for each in actions)


def _words(change: Change, planned: PlannedGroup, model: ModelState | None) -> str:
    """Return a change in words; for digests, only that they differ."""
    if model is not None:
        if change.field == "model":
            return f"{model.source.path.name} has changed"
        data = _DATA.fullmatch(change.field)
        if data is not None and model.found is not None:
            places, number = model.found.locations, int(data[1])
            fewer = f"{model.source.path.name} refers to fewer files"
            return f"{places[number]} has changed" if number < len(places) else fewer
    if change.field == "toolchain.epctx":
        return "epctx itself has changed"
    place = _PROVIDER.fullmatch(change.field)
    if place is not None and int(place[1]) < len(planned.group.execution_providers):
        alias = planned.group.execution_providers[int(place[1])].alias
        change = replace(change, field=f"execution_providers.{alias}.{place[2]}")
    if "blake3:" in f"{change.old}{change.new}":
        return f"{change.field} has changed"
    return str(change)


def _text(key: Digest | None) -> str | None:
    return None if key is None else str(key)
