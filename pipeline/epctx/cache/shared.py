"""Maintenance of a shared cache: list, push, pull and garbage collection."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec import Struct

from epctx import limits
from epctx.cache.action import StoredAction
from epctx.cache.remote import signing
from epctx.cache.remote.store import Store, Stored
from epctx.cache.remote.tier import Tier, object_name
from epctx.cache.store import Cache
from epctx.errors import StorageError
from epctx.files.digest import Digest
from epctx.transfer.attempts import StoreError

_BESIDE: Final = 8
_DAY: Final = 86_400.0
"""Seconds for which an unreferenced object is kept, since its record may still be written."""
_ACTIONS: Final = "v1/actions/"
_OBJECTS: Final = "v1/objects/"
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_DIGEST: Final = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


class Listed(Struct, frozen=True, kw_only=True):
    """An action of a cache.

    Attributes:
        key: key of the action, in hex.
        kind: kind of the action; None if its record cannot be read.
        files: number of its files, `size` bytes together.
        signers: names of the keys in its signatures, which are not verified.
        age: seconds since it was pushed to the shared cache, or last used in the local cache.
    """

    key: str
    kind: str | None
    files: int
    size: int
    signers: tuple[str, ...]
    age: float


class Moved(Struct, frozen=True, kw_only=True):
    """Result of a push or a pull.

    Attributes:
        actions: number of actions that the target now has with all of their files.
        failed: the other actions, each with the reason.
        objects: after a pull, number of files that were fetched; after a push, number of files of
            the pushed actions; `size` bytes together.
    """

    url: str
    actions: int
    failed: tuple[str, ...]
    objects: int
    size: int


class Removed(Struct, frozen=True, kw_only=True):
    """Counts of objects and actions that gc removed from a shared cache, or with `dry_run` would
    remove; sizes in bytes.
    """

    url: str
    dry_run: bool
    actions: int
    objects: int
    size: int
    kept: int


Actions = Mapping[str, StoredAction[msgspec.Raw]]
"""Actions by their keys in hex."""


def related(actions: Actions, names: Iterable[str]) -> set[str]:
    """Return the given names and those of all related actions.

    For a compile these are its recording and verification, the actions that made its models, and
    the actions before those. An action is related to another if its key's record names the other's
    key, or if it made a file or result that the other's record names. The result may have too many
    names, never too few.
    """
    naming, making = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    mentioned = {name: _digests(action.record) for name, action in actions.items()}
    for name, action in actions.items():
        for each in mentioned[name]:
            naming[each].add(name)
        for each in _digests(action.result) | {file.digest.hex for file in action.files}:
            making[each].add(name)
    result, pending = set[str](), set(names)
    while pending:
        name = pending.pop()
        result.add(name)
        new = set(naming[name]).union(*(making[each] for each in mentioned.get(name, ())))
        pending |= new - result
    return result


def _digests(text: msgspec.Raw) -> set[str]:
    return {match.decode() for match in _DIGEST.findall(bytes(text))}


def local(cache: Cache) -> dict[str, StoredAction[msgspec.Raw]]:
    """Return the readable actions of the local cache, by name."""
    actions = {
        name: cache.records.read("actions", name, StoredAction[msgspec.Raw])
        for name in cache.records.names("actions")
    }
    return {name: action for name, action in actions.items() if action is not None}


def ls(cache: Cache) -> list[Listed]:
    """List the actions of the local cache, the most recently used first."""
    listed = [
        _listed(name, action, cache.records.path("actions", name).stat().st_mtime)
        for name, action in local(cache).items()
    ]
    return sorted(listed, key=lambda each: each.age)


def ls_remote(store: Store) -> list[Listed]:
    """List the actions of a shared cache, the newest first; no signature is verified.

    Raises:
        StorageError: the store does not answer.
    """
    with _refusing(store):
        records = _records(store)
    listed = [_listed(name, action, each.modified) for name, each, action in records]
    return sorted(listed, key=lambda each: each.age)


def _listed(key: str, action: StoredAction[msgspec.Raw] | None, since: float) -> Listed:
    files = {} if action is None else {file.digest: file.size for file in action.files}
    return Listed(
        key=key,
        kind=None if action is None else action.kind,
        files=len(files),
        size=sum(files.values()),
        signers=() if action is None else tuple(each.keyid or "?" for each in action.signatures),
        age=max(0.0, time.time() - since),
    )


def push(cache: Cache, remote: Tier, names: Collection[str] | None) -> Moved:
    """Sign the actions of the local cache, and push them to the shared cache.

    Fetched actions are left out. Actions that lack a file count as failed.

    Args:
        names: actions to push with all related ones; None for all actions.

    Raises:
        StorageError: the store does not answer.
    """
    store, pushed, failed, actions = remote.store, 0, list[str](), local(cache)
    sizes: dict[Digest, int] = {}
    for name in sorted(actions if names is None else related(actions, names) & actions.keys()):
        key, action = Digest("blake3", name), actions[name]
        signed = None if action.fetched else cache.vouched(key, action)
        if signed is None:
            continue
        if not all(cache.holds(file) for file in action.files):
            failed.append(f"{action.kind} {name}: the local cache lacks a file of it")
            continue
        with _refusing(store):
            sources = {file.digest: cache.objects.path(file.digest) for file in action.files}
            remote.put(store, key, signed, sources)
        pushed += 1
        sizes |= {file.digest: file.size for file in action.files}
    return Moved(
        url=store.url,
        actions=pushed,
        failed=tuple(failed),
        objects=len(sizes),
        size=sum(sizes.values()),
    )


def pull(cache: Cache, remote: Tier, names: Collection[str] | None) -> Moved:
    """Fetch actions with their files from the shared cache into the local cache, each verified.

    Args:
        names: actions to fetch with all related ones; None for all actions.

    Raises:
        StorageError: the store does not answer; the cache cannot be written.
    """
    store, pulled, failed = remote.store, 0, list[str]()
    with _refusing(store):
        actions = {name: action for name, _, action in _records(store) if action is not None}
    for name in sorted(actions if names is None else related(actions, names)):
        action = cache.find(Digest("blake3", name), msgspec.Raw)
        if action is None or not cache.gather(action):
            failed.append(f"{name}: it is missing, damaged or not signed by a trusted key")
            continue
        pulled += 1
    report = remote.report
    return Moved(
        url=store.url,
        actions=pulled,
        failed=tuple(failed),
        objects=0 if report is None else report.objects,
        size=0 if report is None else report.fetched,
    )


def collect(
    store: Store, *, keep: Collection[str], max_age: float | None, dry_run: bool = False
) -> Removed:
    """Remove actions that are not kept and were pushed more than `max_age` seconds ago, then
    objects that no action refers to.

    An object that is younger than a day stays, since its record may still be written. If a request
    for a record fails, nothing is removed. A damaged record keeps no object.

    Args:
        keep: names of actions that stay with all related ones.
        max_age: age in seconds; None to keep every readable action.

    Raises:
        StorageError: the store does not answer.
    """
    now = time.time()
    with _refusing(store):
        # Objects are listed before records, so a record that is written meanwhile is seen.
        objects = [each for each in store.list(_OBJECTS) if _is_hex(each, _OBJECTS)]
        records = _records(store)
        actions = {name: action for name, _, action in records if action is not None}
        kept = set(actions) if max_age is None else related(actions, keep)
        oldest = now - (_DAY if max_age is None else max_age)
        kept &= actions.keys()
        expired = {name for name, r, _ in records if r.modified < oldest and name not in kept}
        referred = {
            object_name(file.digest)
            for name, action in actions.items()
            if name not in expired
            for file in action.files
        }
        loose = [o for o in objects if o.name not in referred and o.modified < now - _DAY]
        if not dry_run:
            # Records before their objects, so that no record is left without its objects.
            store.delete([f"{_ACTIONS}{name}" for name in sorted(expired)])
            store.delete([each.name for each in loose])
    size = sum(each.size for each in loose)
    return Removed(
        url=store.url,
        dry_run=dry_run,
        actions=len(expired),
        objects=len(loose),
        size=size,
        kept=sum(each.size for each in objects) - size,
    )


def _records(store: Store) -> list[tuple[str, Stored, StoredAction[msgspec.Raw] | None]]:
    """Return the records of a store: key in hex, blob, and action (None if it is damaged)."""
    listed = [each for each in store.list(_ACTIONS) if _is_hex(each, _ACTIONS)]
    with ThreadPoolExecutor(_BESIDE) as threads:
        actions = list(threads.map(lambda each: _record(store, each), listed))
    names = [each.name.removeprefix(_ACTIONS) for each in listed]
    return list(zip(names, listed, actions, strict=True))


def _record(store: Store, each: Stored) -> StoredAction[msgspec.Raw] | None:
    most = limits.REMOTE_RECORD_BYTES.value
    content = store.read(each.name, most) if each.size <= most else None
    try:
        key = Digest("blake3", each.name.removeprefix(_ACTIONS))
        return None if content is None else signing.unseal(key, content)
    except signing.Damaged:
        return None


def _is_hex(each: Stored, prefix: str) -> bool:
    return _HEX.fullmatch(each.name.removeprefix(prefix)) is not None


@contextmanager
def _refusing(store: Store) -> Iterator[None]:
    """Turn the errors of a store into StorageError."""
    try:
        yield
    except StoreError as error:
        raise StorageError(
            "the shared cache failed a request",
            where=store.url,
            why=str(error),
            remedy="try again, or check its address and credentials",
        ) from error
