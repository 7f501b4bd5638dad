"""Looking after a shared cache: what it has, to and from the local one, and what may go."""

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
"""Seconds that an object stays that nothing refers to: its record may be on its way."""
_ACTIONS: Final = "v1/actions/"
_OBJECTS: Final = "v1/objects/"
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_DIGEST: Final = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


class Listed(Struct, frozen=True, kw_only=True):
    """An action of a cache.

    Attributes:
        key: in hex.
        kind: which action; None: its record cannot be read.
        files: how many, `size` bytes together.
        signers: the names of the keys that signed it; whether they did is not looked at.
        age: seconds since it was put there; in the local cache since it was used.
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
        actions: records that are there now, with all of their files.
        failed: that are not, and why, in words.
        objects: files that were moved, `size` bytes together; of a push those of its actions.
    """

    url: str
    actions: int
    failed: tuple[str, ...]
    objects: int
    size: int


class Removed(Struct, frozen=True, kw_only=True):
    """Objects and actions that gc removed of a shared cache, or with `dry_run` would remove; sizes
    in bytes.
    """

    url: str
    dry_run: bool
    actions: int
    objects: int
    size: int
    kept: int


Actions = Mapping[str, StoredAction[msgspec.Raw]]
"""Actions by the names of their keys."""


def related(actions: Actions, names: Iterable[str]) -> set[str]:
    """The names, and those of what belongs to them: what was recorded and verified of a compile,
    the models that it was made of, and what those were made of.

    An action belongs to another if its key's record names the other's key, or if it made what the
    other's names. So this is at worst too much.
    """
    naming, making = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    mentioned = {name: _digests(action.record) for name, action in actions.items()}
    for name, action in actions.items():
        for each in mentioned[name]:
            naming[each].add(name)
        for each in _digests(action.result) | {file.digest.hex for file in action.files}:
            making[each].add(name)
    found, left = set[str](), set(names)
    while left:
        name = left.pop()
        found.add(name)
        new = set(naming[name]).union(*(making[each] for each in mentioned.get(name, ())))
        left |= new - found
    return found


def _digests(text: msgspec.Raw) -> set[str]:
    return {found.decode() for found in _DIGEST.findall(bytes(text))}


def local(cache: Cache) -> dict[str, StoredAction[msgspec.Raw]]:
    """The actions of the local cache."""
    found = {
        name: cache.records.read("actions", name, StoredAction[msgspec.Raw])
        for name in cache.records.names("actions")
    }
    return {name: action for name, action in found.items() if action is not None}


def ls(cache: Cache) -> list[Listed]:
    """List the actions of the local cache, used last first."""
    found = [
        _listed(name, action, cache.records.path("actions", name).stat().st_mtime)
        for name, action in local(cache).items()
    ]
    return sorted(found, key=lambda each: each.age)


def ls_remote(store: Store) -> list[Listed]:
    """List the actions of a shared cache, the newest first; nothing of them is verified.

    Raises:
        StorageError: the store does not answer.
    """
    with _refusing(store):
        records = _records(store)
    found = [_listed(name, action, each.modified) for name, each, action in records]
    return sorted(found, key=lambda each: each.age)


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
    """Sign what is in the local cache, and put it into the shared one.

    What came from there, and what has lost a file, is left out.

    Args:
        names: of the actions that go there with all that belongs to them; None: all.

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
            failed.append(f"{action.kind} {name}: a file of it is not here")
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
    """Get actions with their files from the shared cache into the local one, each verified.

    Args:
        names: of the actions that are got with all that belongs to them; None: all.

    Raises:
        StorageError: the store does not answer; the cache cannot be written.
    """
    store, pulled, failed = remote.store, 0, list[str]()
    with _refusing(store):
        known = {name: action for name, _, action in _records(store) if action is not None}
    for name in sorted(known if names is None else related(known, names)):
        action = cache.find(Digest("blake3", name), msgspec.Raw)
        if action is None or not cache.gather(action):
            failed.append(f"{name}: it is not there, or not to be believed")
            continue
        pulled += 1
    told = remote.report
    return Moved(
        url=store.url,
        actions=pulled,
        failed=tuple(failed),
        objects=0 if told is None else told.objects,
        size=0 if told is None else told.fetched,
    )


def collect(
    store: Store, *, keep: Collection[str], max_age: float | None, dry_run: bool = False
) -> Removed:
    """Remove actions that are not kept and were put there longer ago than `max_age` seconds, then
    objects that no action refers to.

    An object that is younger than a day stays: its record may be on its way. Nothing is removed
    unless every record was read that stays.

    Args:
        keep: names of actions that stay, and what was recorded and verified of what they compiled.
        max_age: None: every action stays that can be read.

    Raises:
        StorageError: the store does not answer.
    """
    now = time.time()
    with _refusing(store):
        # Objects first: one whose record comes meanwhile is referred to.
        objects = [each for each in store.list(_OBJECTS) if _is_hex(each, _OBJECTS)]
        records = _records(store)
        known = {name: action for name, _, action in records if action is not None}
        kept = set(known) if max_age is None else related(known, keep)
        oldest = now - (_DAY if max_age is None else max_age)
        kept &= known.keys()
        gone = {name for name, r, _ in records if r.modified < oldest and name not in kept}
        referred = {
            object_name(file.digest)
            for name, action in known.items()
            if name not in gone
            for file in action.files
        }
        loose = [o for o in objects if o.name not in referred and o.modified < now - _DAY]
        if not dry_run:
            # Records before their objects: a record without them would be a broken promise.
            store.delete([f"{_ACTIONS}{name}" for name in sorted(gone)])
            store.delete([each.name for each in loose])
    size = sum(each.size for each in loose)
    return Removed(
        url=store.url,
        dry_run=dry_run,
        actions=len(gone),
        objects=len(loose),
        size=size,
        kept=sum(each.size for each in objects) - size,
    )


def _records(store: Store) -> list[tuple[str, Stored, StoredAction[msgspec.Raw] | None]]:
    """The records of a store, by the names of their keys; None: of no use to anybody."""
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
            "the shared cache does not do what is asked",
            where=store.url,
            why=str(error),
            remedy="try again, or look at its credentials and its address",
        ) from error
