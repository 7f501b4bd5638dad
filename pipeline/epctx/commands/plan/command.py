"""What a build would do, and why: `epctx plan`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from epctx import lockfile
from epctx.cache import Action, Cache
from epctx.cache.action import RemoteReport
from epctx.engine import ranges
from epctx.engine.actions.compose import assess as assess_composition
from epctx.engine.last_keys import History
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import Place
from epctx.engine.plan import Plan, PlannedComposition, PlannedGroup
from epctx.engine.state import Compiled, GroupState, Optimized, Quantized
from epctx.engine.unchanged import Unchanged
from epctx.errors import Failure, LockError
from epctx.files.digest import Digest
from epctx.keys import Change, KeyRecord, between
from epctx.lockfile.types import LockedSource
from epctx.providers.hooks import KnowsAbsence, TellsCost
from epctx.text import Brief

_DATA = re.compile(r"data\[(\d+)\]")
_PROVIDER = re.compile(r"providers\[(\d+)\]\.(.*)")
State = Literal["up to date", "runs", "depends"]


class PlannedAction(Struct, frozen=True, kw_only=True):
    """An action of a session group.

    Attributes:
        action: optimize, quantize, compile, verify.
        subject: the model, the sharing group, or the group as a whole.
        state: `depends`: what is before it runs, and may give what it gave before.
        because: why it runs, in words.
        key: in the cache; None: what it depends on is not known yet.
        changes: the fields of the key's record that differ from what was built last.
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
        state: `publishes`: all results are in the cache, and what is published is something else.
        because: why it is not up to date, in words.
        cost: what its compiles take beyond one of each model, in words.
        failure: why a build of it would fail here, as far as that is known without its EPs'
            libraries: this host has no device for one of them.
        fetches: bytes that would come from the shared cache.
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


class PlanReport(Brief, frozen=True, kw_only=True):
    """What a build would do, in manifest order; `remote`: the shared cache that was asked."""

    name: str
    groups: tuple[GroupPlan, ...]
    remote: RemoteReport | None = None


def plan_report(plan: Plan, *, out: Path, cache: Cache, numbers: bool) -> PlanReport:
    """What `build` would do with these arguments; as `api.plan`."""
    place = Place(out=out.resolve(), name=plan.manifest.name)
    lookup = Lookup(cache, cache.digests, numbers=numbers, ranges=ranges.of(plan.manifest))
    history = History(records=cache.records, manifest=plan.manifest.path)
    unchanged = Unchanged(cache.records, lookup, place, plan.manifest.path)
    known = {planned.label: unchanged.assess(planned) for planned in plan.groups}
    cache.digests.flush()
    locked = _Locked(plan.manifest.path)
    found = [_Group(each, lookup, history, locked).plan() for each in known.values()]
    found += [_composition(each, known, lookup, place, history) for each in plan.compositions]
    remote = None if cache.remote is None else cache.remote.report
    return PlanReport(name=plan.manifest.name, groups=tuple(found), remote=remote)


def _composition(
    planned: PlannedComposition,
    known: Mapping[str, GroupState],
    lookup: Lookup,
    place: Place,
    history: History,
) -> GroupPlan:
    """What a build would do about a composition, as far as its parts are compiled."""
    name = planned.composition.name
    parts = {each.group.name: known[each.label] for each in planned.groups}
    waits = [group for group, part in parts.items() if not all(s.complete for s in part.sessions)]
    action = PlannedAction(action="compose", subject=name, state="depends")
    because: tuple[str, ...] = (f"depends on what {', '.join(waits)} will be",)
    state: Literal["up to date", "runs"] = "runs"
    if not waits:
        looked = assess_composition(planned, parts, lookup, place)
        last = history.last(planned.label, "compose", name)
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


class _Locked:
    """What a manifest's lock says of sources: read once, when it is asked."""

    def __init__(self, manifest: Path) -> None:
        self._manifest = manifest

    @cached_property
    def _sources(self) -> Mapping[str, LockedSource]:
        try:
            return lockfile.read(lockfile.place(self._manifest)).sources
        except LockError:  # there is none, or it cannot be read: the build will say so
            return {}

    def of(self, path: Path) -> LockedSource | None:
        """What it says of a file."""
        name = os.path.relpath(path, self._manifest.parent) if self._sources else ""
        return self._sources.get(Path(name).as_posix())


class _Group:
    """One group of a plan."""

    def __init__(
        self, known: GroupState, lookup: Lookup, history: History, locked: _Locked
    ) -> None:
        self._locked = locked
        self._known = known
        self._planned = known.planned
        self._lookup = lookup
        self._history = history

    def plan(self) -> GroupPlan:
        known, planned = self._known, self._planned
        actions = tuple(self._actions())
        state: Literal["up to date", "publishes", "runs"] = "up to date"
        because: tuple[str, ...] = ()
        if any(action.state != "up to date" for action in actions):
            state = "runs"
            because = tuple(dict.fromkeys(why for action in actions for why in action.because))
        elif known.published is not None:
            state, because = "publishes", (known.published,)
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
        """Bytes that only the shared cache has of what is not carried out."""
        cache = self._lookup.cache
        assert cache is not None
        needed = [
            model.quantized.action.files
            for session in self._known.sessions
            for model in session.models
            if model.quantized is not None and model.quantized.action is not None
        ]
        verified = self._known.verified or (None,) * len(self._known.sessions)
        for session, known in zip(self._known.sessions, verified, strict=True):
            if session.action is None:
                needed += [m.action.files for m in session.models if m.action is not None]
                continue
            needed.append(session.action.files)
            if session.recording is not None and (known is None or known.action is None):
                needed.append(session.recording.files)
        missing = {f.digest: f.size for files in needed for f in files if not cache.holds(f)}
        return sum(missing.values()) if cache.remote is not None else 0

    def _cost(self) -> Iterator[str]:
        group = self._planned.group
        for spec in group.execution_providers:
            provider = self._lookup.toolchain.ep(spec)
            if isinstance(provider, TellsCost):
                words = provider.cost(numbers=self._lookup.records(group))
                yield from () if words is None else (words,)

    def _failure(self, actions: Sequence[PlannedAction]) -> Failure | None:
        """What is compiled already is published without a device."""
        if not _compiles(actions):
            return None
        for spec in self._planned.group.execution_providers:
            provider = self._lookup.toolchain.ep(spec)
            error = provider.unavailable() if isinstance(provider, KnowsAbsence) else None
            if error is not None:
                return error.failure
        return None

    def _actions(self) -> Iterator[PlannedAction]:
        for session in self._known.sessions:
            for model in session.models:
                yield self._optimize(model.origin)
                if model.quantized is not None:
                    yield self._quantize(model.quantized)
            yield self._compile(session)
        yield self._verify()

    def _optimize(self, model: Optimized) -> PlannedAction:
        source = model.source
        action = PlannedAction(
            action="optimize", subject=source.name, state="up to date", key=_text(model.key)
        )
        if model.action is not None:
            return action
        if model.record is not None:
            return self._running(action, model.record, model)
        return self._unloaded(action, model)

    def _quantize(self, model: Quantized) -> PlannedAction:
        action = PlannedAction(
            action="quantize",
            subject=model.plain.source.name,
            state="up to date",
            key=_text(model.key),
        )
        if model.action is not None:
            return action
        if model.record is not None:
            return self._running(action, model.record)
        if model.calibration is None:
            return replace(action, state="depends")
        why = f"{action.subject} is not calibrated to these samples"
        return replace(action, state="runs", because=(why,))

    def _unloaded(self, action: PlannedAction, model: Optimized) -> PlannedAction:
        """Of a model that was never loaded as it is: of the record only that much is known."""
        old = self._last(action)
        name = model.source.path.name
        if old is None:
            return replace(action, state="runs", because=(self._by_lock(model),))
        before = msgspec.json.decode(old.record, type=dict[str, Any])["model"]
        now = self._lookup.sources.model(model.source)
        changes = between({"model": before}, {"model": str(now)})
        return replace(action, state="runs", because=(f"{name} has changed",), changes=changes)

    def _by_lock(self, model: Optimized) -> str:
        """Why a model is built that this cache has never seen, as far as the lock knows it."""
        source = model.source
        name, locked = source.path.name, self._locked.of(source.path)
        if locked is None:
            return f"{name} was never built here"
        if locked.digest == str(self._lookup.sources.model(source)):
            return f"{name} is as the lock has it, and this cache has nothing of it"
        return f"{name} has changed since the lock was written"

    def _compile(self, session: Compiled) -> PlannedAction:
        action = PlannedAction(
            action="compile",
            subject=session.session.label,
            state="up to date",
            key=_text(session.key),
        )
        if session.action is None:
            if session.record is None:
                return replace(action, state="depends")
            return self._running(action, session.record)
        if not session.complete:
            why = "what its sessions compute on these inputs was not recorded"
            return replace(action, state="runs", because=(why,))
        return action

    def _verify(self) -> PlannedAction:
        known, subject = self._known, self._planned.group.name
        action = PlannedAction(action="verify", subject=subject, state="up to date")
        if known.whole is None:
            return replace(action, state="depends")
        action = replace(action, key=str(known.whole.key))
        if known.checked:
            return action
        parts = zip(known.sessions, known.verified, strict=True)
        told = [
            self._running(replace(action, subject=session.session.label), verified.record)
            for session, verified in parts
            if verified.action is None and verified.record is not None
        ]
        reasons = [why for each in told for why in each.because]
        return replace(
            action,
            state="runs",
            because=tuple(dict.fromkeys(reasons or ["the folder as a whole was not verified"])),
            changes=tuple(dict.fromkeys(c for each in told for c in each.changes)),
        )

    def _running(
        self,
        action: PlannedAction,
        record: KeyRecord,
        model: Optimized | None = None,
    ) -> PlannedAction:
        """An action that runs, with what of its record has changed since it ran last."""
        last = self._history.last(self._planned.label, action.action, action.subject)
        if last is None:
            why = f"{action.action} of {action.subject}: it never ran here"
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

    def _last(self, action: PlannedAction) -> Action[msgspec.Raw] | None:
        """What the cache has of the action as it was carried out last."""
        last = self._history.last(self._planned.label, action.action, action.subject)
        cache = self._lookup.cache
        if last is None or cache is None:
            return None
        return cache.records.read("actions", last.hex, Action[msgspec.Raw])


def _compiles(actions: Sequence[PlannedAction]) -> bool:
    return any(each.action == "compile" and each.state != "up to date" for each in actions)


def _words(change: Change, planned: PlannedGroup, model: Optimized | None) -> str:
    """A change for people: digests tell nothing but that something is another."""
    if model is not None:
        if change.field == "model":
            return f"{model.source.path.name} has changed"
        data = _DATA.fullmatch(change.field)
        if data is not None and model.found is not None:
            return f"{model.found.locations[int(data[1])]} has changed"
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
