"""Locks of several kinds of host: entries that depend on the host, by its facts.

A build makes a lock of one kind of host: `host` of an EP has the facts that its bytes depend on. A
    lock of several kinds has one entry in `hosts` for each kind. An entry has the outputs of groups
    with such an EP, and of compositions with such a group. Everything else is in the lock once.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from epctx.files import digest
from epctx.lockfile.differences import between_locks, causes_between
from epctx.lockfile.types import Lock, LockedHost, LockedSession
from epctx.providers.onnxruntime.host import Cpu

Kind = Mapping[str, Mapping[str, str]]
"""Facts of a host that bytes depend on, by the name of the EP in the lock."""


def kind(lock: Lock) -> Kind:
    """Return the kind of host of a build's lock; empty if nothing depends on the host."""
    return {name: ep.host for name, ep in lock.execution_providers.items() if ep.host}


def kinds(lock: Lock) -> tuple[Kind, ...]:
    """Return the kinds of host in a lock; a single empty one if nothing depends on the host."""
    return tuple(entry.execution_providers for entry in _apart(lock).hosts.values()) or ({},)


def views(lock: Lock) -> tuple[Lock, ...]:
    """Return the part of a lock for each of its kinds of host."""
    return tuple(on(lock, each) for each in kinds(lock))


def name(kind: Kind) -> str:
    """Return the name of an entry: a digest of its facts."""
    return f"host-{digest.of_json(kind).hex[:12]}"


def label(kind: Kind) -> str:
    """Return the name of a kind of host in `oci` of a lock."""
    return name(kind) if kind else "any"


def words(kind: Kind, *, beside: Kind | None = None) -> str:
    """Return the facts of a kind in words; if `beside` is given, only facts that differ from it."""
    other_facts = {} if beside is None else _facts(beside)
    lines = [
        f"{fact}: {_value(value, other_facts.get(fact, ''))}"
        for fact, value in _facts(kind).items()
        if other_facts.get(fact) != value
    ]
    return "; ".join(lines) or "no facts that bytes depend on"


def on(lock: Lock, here: Kind) -> Lock:
    """Return the part of a lock for a kind of host; folders that are `lacking` have no outputs."""
    lock = _apart(lock)
    if not lock.hosts:
        return lock
    groups, compositions, golden = dict(lock.groups), dict(lock.compositions), dict(lock.golden)
    any_kind = next(iter(lock.hosts.values()))
    for folder, sessions in any_kind.groups.items():
        entry = _entry(lock, folder, here)
        sessions_here = _without_outputs(sessions) if entry is None else entry.groups[folder]
        groups[folder] = replace(groups[folder], session_groups=sessions_here)
    for folder in any_kind.compositions:
        outputs = (_entry(lock, folder, here) or _NONE).compositions.get(folder, {})
        compositions[folder] = replace(compositions[folder], outputs=outputs)
    for folder in (*any_kind.groups, *any_kind.compositions):
        files = (_entry(lock, folder, here) or _NONE).golden.get(folder)
        golden |= {} if files is None else {folder: files}
    facts = {ep: here.get(ep, {}) for ep in any_kind.execution_providers}
    return replace(
        lock,
        compositions=compositions,
        cpus=_used(lock.cpus, *(group.session_groups for group in groups.values())),
        execution_providers={
            ep: replace(each, host=facts.get(ep, each.host))
            for ep, each in lock.execution_providers.items()
        },
        golden=golden,
        groups=groups,
        hosts={},
        lock_version=1,
        oci={name: each for name, each in lock.oci.items() if name == label(here)},
    )


def lacking(lock: Lock, here: Kind) -> tuple[str, ...]:
    """Return the folders whose outputs depend on the host, but exist only for other kinds."""
    lock = _apart(lock)
    any_kind = next(iter(lock.hosts.values()), _NONE)
    folders = (*any_kind.groups, *any_kind.compositions)
    return tuple(folder for folder in folders if _entry(lock, folder, here) is None)


def added(old: Lock, new: Lock) -> Lock:
    """Add the entries of an older lock for other kinds of host, if they are still valid.

    The older entries are valid while sources, settings and toolchain are the same, and while
    changed code of epctx does not change the outputs of this kind: it may change those of other
    kinds, too.
    """
    here, before = kind(new), on(old, kind(new))
    lacks = lacking(old, here)
    differences = causes_between(before, new) if lacks else between_locks(before, new)
    if any(each.kind not in ("key", "output") for each in differences):
        return new
    one, other = _apart(new), _apart(old)
    other_hosts = {
        n: entry for n, entry in other.hosts.items() if entry.execution_providers != here
    }
    if not other_hosts or _dependent(one) != _dependent(other):
        return new
    hosts = {**other_hosts, **one.hosts}
    sessions = [each for entry in hosts.values() for each in entry.groups.values()]
    sessions += [group.session_groups for group in one.groups.values()]
    cpus = _used({**other.cpus, **one.cpus}, *sessions)
    oci = {n: each for n, each in old.oci.items() if n in other_hosts} | dict(new.oci)
    return replace(one, cpus=cpus, hosts=hosts, lock_version=2, oci=oci)


_FEW = 6
"""Largest number of words of a fact that are listed."""
_NONE = LockedHost(compositions={}, execution_providers={}, golden={}, groups={})


def _apart(lock: Lock) -> Lock:
    """Return a lock in the form for several kinds of host, with `hosts`."""
    here = kind(lock)
    if lock.hosts or not here:
        return lock
    groups = {n: g for n, g in lock.groups.items() if _eps(lock, n) & here.keys()}
    compositions = {n: c for n, c in lock.compositions.items() if _eps(lock, n) & here.keys()}
    folders = {*groups, *compositions}
    entry = LockedHost(
        compositions={n: each.outputs for n, each in compositions.items()},
        execution_providers=here,
        golden={n: files for n, files in lock.golden.items() if n in folders},
        groups={n: each.session_groups for n, each in groups.items()},
    )
    return replace(
        lock,
        compositions={
            **lock.compositions,
            **{n: replace(each, outputs={}) for n, each in compositions.items()},
        },
        execution_providers={
            n: replace(each, host={}) for n, each in lock.execution_providers.items()
        },
        golden={n: files for n, files in lock.golden.items() if n not in folders},
        groups={
            **lock.groups,
            **{n: replace(each, session_groups={}) for n, each in groups.items()},
        },
        hosts={name(here): entry},
        lock_version=2,
    )


def _facts(kind: Kind) -> dict[str, str]:
    return {f"{ep}: {name}": text for ep, facts in kind.items() for name, text in facts.items()}


def _value(text: str, other: str) -> str:
    """Return a fact; if it has many words, their number and the difference from `other`."""
    values, other_values = text.split(), other.split()
    if len(values) <= _FEW:
        return text
    more = [f"+{each}" for each in values if other_values and each not in other_values]
    less = [f"-{each}" for each in other_values if each not in values]
    count = f"{len(values)} of them"
    return f"{count}, {' '.join((*more, *less))}" if more or less else count


def _eps(lock: Lock, folder: str) -> set[str]:
    """Return the names of the EPs that made the files of a folder."""
    composition, target = lock.compositions.get(folder), folder.partition("/")[0]
    parts = composition.parts.values() if composition is not None else ()
    groups = [folder] if composition is None else [f"{target}/{part.group}" for part in parts]
    return {
        ep.provider
        for each in groups
        if each in lock.groups
        for ep in lock.groups[each].execution_providers
    }


def _entry(lock: Lock, folder: str, here: Kind) -> LockedHost | None:
    """Return the entry with a folder's outputs for a kind of host, by the facts of its EPs."""
    used = _eps(lock, folder)
    for entry in lock.hosts.values():
        facts = {ep: each for ep, each in entry.execution_providers.items() if ep in used}
        if facts == {ep: here.get(ep) for ep in facts}:
            return entry
    return None


def _dependent(lock: Lock) -> set[tuple[frozenset[str], frozenset[str]]]:
    """Return the EPs and folders that depend on the host, for each entry."""
    return {
        (frozenset(entry.execution_providers), frozenset({*entry.groups, *entry.compositions}))
        for entry in lock.hosts.values()
    }


def _without_outputs(sessions: Mapping[str, LockedSession]) -> dict[str, LockedSession]:
    return {n: replace(session, cpu=None, outputs={}) for n, session in sessions.items()}


def _used(cpus: Mapping[str, Cpu], *sessions: Mapping[str, LockedSession]) -> dict[str, Cpu]:
    names = {session.cpu for each in sessions for session in each.values()}
    return {n: cpu for n, cpu in cpus.items() if n in names}
