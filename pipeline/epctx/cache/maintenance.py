"""Maintenance of the cache: statistics, a check of all contents, and garbage collection."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from epctx.cache.action import StoredAction
from epctx.cache.contents import KINDS, Kind, sweep
from epctx.cache.digests import remembered_files
from epctx.cache.store import Cache
from epctx.files import identity
from epctx.files.entries import discard

_LISTED: Final = ("optimize", "calibrate", "quantize", "compile", "recording", "verify", "compose")
"""Kinds of actions that are listed even if the cache has none of them."""


class Info(Struct, frozen=True, kw_only=True):
    """Statistics of a cache; sizes in bytes.

    Attributes:
        actions: number of results, by kind of action.
        remembered: number of files whose digest is remembered.
        quarantined: number of files that were found corrupt.
        remote: URL of the shared cache, without credentials; None if no shared cache is used.
        trusts: the names of the keys whose signatures count.
        signs: a signing key is configured, so results are signed and pushed.
    """

    folder: str
    readonly: bool
    actions: dict[str, int]
    objects: int
    size: int
    remembered: int
    quarantined: int
    remote: str | None = None
    trusts: tuple[str, ...] = ()
    signs: bool = False


class Checked(Struct, frozen=True, kw_only=True):
    """Result of a check.

    Attributes:
        objects: number of objects that were read.
        size: bytes of these objects.
        records: number of records that were read.
        corrupt: corrupt objects and records; they were set aside, unless the cache is read-only.
        incomplete: number of actions that lack an object; they will be carried out again.
        elsewhere: number of fetched actions without all of their files. The files are fetched when
            they are needed; if that fails, the action is carried out again.
        readonly: the cache is read-only, so nothing was set aside.
    """

    folder: str
    objects: int
    size: int
    records: int
    corrupt: tuple[str, ...]
    incomplete: int
    elsewhere: int = 0
    readonly: bool = False


def info(cache: Cache) -> Info:
    """Return statistics of the cache."""
    actions = dict.fromkeys(_LISTED, 0)
    for name in cache.records.names("actions"):
        action = cache.records.read("actions", name, StoredAction[msgspec.Raw])
        if action is not None:
            actions[action.kind] = actions.get(action.kind, 0) + 1
    sizes = [status.st_size for _, status in cache.objects.all()]
    quarantine = cache.location.root / "quarantine"
    return Info(
        folder=str(cache.location.folder),
        readonly=cache.location.readonly,
        actions=actions,
        objects=len(sizes),
        size=sum(sizes),
        remembered=sum(
            len(remembered_files(cache.records, name)) for name in cache.records.names("digests")
        ),
        quarantined=sum(1 for _ in quarantine.iterdir()) if quarantine.is_dir() else 0,
        remote=None if cache.remote is None else cache.remote.store.url,
        trusts=cache.trusts,
        signs=cache.signs,
    )


def check(cache: Cache) -> Checked:
    """Read all objects and records. Corrupt ones are set aside, reported, and made again later.

    No lock is needed beside writers, since files are moved into place complete.
    """
    corrupt: list[str] = []
    size = objects = 0
    for content, status in cache.objects.all():
        objects, size = objects + 1, size + status.st_size
        if not cache.objects.check(content):
            corrupt.append(f"objects/{content.hex}")
    records = incomplete = elsewhere = 0
    for kind in KINDS:
        for name in cache.records.names(kind):
            records += 1
            if cache.records.read(kind, name, msgspec.Raw) is None:
                corrupt.append(f"{kind}/{name}")
    for name in cache.records.names("actions"):
        action = cache.records.read("actions", name, StoredAction[msgspec.Raw])
        if action is not None and not all(map(cache.holds, action.files)):
            incomplete += not action.fetched
            elsewhere += action.fetched
    return Checked(
        folder=str(cache.location.folder),
        objects=objects,
        size=size,
        records=records,
        corrupt=tuple(corrupt),
        incomplete=incomplete,
        elsewhere=elsewhere,
        readonly=cache.location.readonly,
    )


_DISCARDED = ("quarantine", "locks", "latest", "unchanged")
"""Folders that gc removes as a whole; the last two have records of former versions."""


class Limits(Struct, frozen=True, kw_only=True):
    """Limits for actions that no lock file names. Without a limit, every readable action stays.

    Attributes:
        max_size: bytes of all objects; the actions used longest ago are removed first.
        max_age: seconds since the last use.
    """

    max_size: int | None = None
    max_age: float | None = None


class Collected(Struct, frozen=True, kw_only=True):
    """Objects and records that gc removed, or with `dry_run` would remove; sizes in bytes.

    Attributes:
        actions: action records removed.
        objects: objects removed, `size` bytes together.
        records: other records removed.
        leftovers: files of dead processes and of the quarantine.
        kept: bytes of objects that stay.
    """

    dry_run: bool
    actions: int
    objects: int
    size: int
    records: int
    leftovers: int
    kept: int


class _Used(Struct, frozen=True, kw_only=True):
    """An action record: the time of its last use, and the sizes of its objects by name."""

    name: str
    used: float
    objects: dict[str, int]


def collect(
    cache: Cache, *, keep: Collection[str], limits: Limits, dry_run: bool = False
) -> Collected:
    """Remove actions beyond `limits`, unreferenced objects, stale records and leftovers.

    The caller holds `locks.alone`.

    Args:
        cache: not read-only.
        keep: names of actions that stay regardless of the limits: those of lock files.
        limits: limits for all other actions.
        dry_run: remove nothing; only count.
    """
    stored = {content: status.st_size for content, status in cache.objects.all()}
    sizes = {content.hex: size for content, size in stored.items()}
    actions = sorted(_actions(cache, sizes), key=lambda action: action.used, reverse=True)
    staying = [a for a in actions if a.name in keep]
    others = [a for a in actions if a.name not in keep]
    staying += _within(others, limits, {n: s for a in staying for n, s in a.objects.items()})
    names = {action.name for action in staying}
    referred = {name for action in staying for name in action.objects}
    expired = [cache.records.path("actions", a.name) for a in actions if a.name not in names]
    objects = [content for content in stored if content.hex not in referred]
    records = [*_stale_digests(cache), *_old_records(cache, limits)]
    leftovers = list(_leftovers(cache))
    if not dry_run:
        # Records before their objects, so that no record is left without its objects.
        for path in (*expired, *map(cache.objects.path, objects), *records):
            discard(path)
        _remove_leftovers(cache)
    return Collected(
        dry_run=dry_run,
        actions=len(expired),
        objects=len(objects),
        size=sum(stored[content] for content in objects),
        records=len(records),
        leftovers=len(leftovers),
        kept=sum(size for content, size in stored.items() if content.hex in referred),
    )


def _actions(cache: Cache, sizes: Mapping[str, int]) -> Iterator[_Used]:
    for name in cache.records.names("actions"):
        action = cache.records.read("actions", name, StoredAction[msgspec.Raw])
        with contextlib.suppress(FileNotFoundError):
            used = cache.records.path("actions", name).stat().st_mtime
            # An unreadable record is removed first, and keeps no object.
            files = action.files if action is not None else ()
            yield _Used(
                name=name,
                used=used if action is not None else 0.0,
                # Objects that only the shared cache has take no room here.
                objects={file.digest.hex: sizes.get(file.digest.hex, 0) for file in files},
            )


def _within(actions: list[_Used], limits: Limits, stored: dict[str, int]) -> list[_Used]:
    """Return the most recently used of `actions` that fit within the limits, in addition to the
    objects `stored` in any case.
    """
    if limits.max_age is not None:
        oldest = time.time() - limits.max_age
        actions = [action for action in actions if action.used >= oldest]
    if limits.max_size is None:
        return actions
    staying, size = [], sum(stored.values())
    counted = set(stored)
    for action in actions:
        new = {name: s for name, s in action.objects.items() if name not in counted}
        if size + sum(new.values()) > limits.max_size:
            break
        size += sum(new.values())
        counted |= new.keys()
        staying.append(action)
    return staying


def _stale_digests(cache: Cache) -> Iterator[Path]:
    """Yield the digest records whose files have all been changed or removed.

    The record of a whole tree stays as long as the folder exists: packages of EPs are such trees.
    """
    for name in cache.records.names("digests"):
        files = remembered_files(cache.records, name)
        if not any(_is_still(path, text) for path, text in files.items()):
            yield cache.records.path("digests", name)


def _is_still(path: Path, text: str) -> bool:
    """Return whether a file still has the identity `text`; of a tree, whether it still exists."""
    try:
        return path.is_dir() or identity.of_path(path).text == text
    except OSError:
        return False


def _old_records(cache: Cache, limits: Limits) -> Iterator[Path]:
    if limits.max_age is None:
        return
    kinds: tuple[Kind, ...] = ("groups", "pace")
    for kind in kinds:
        for name in cache.records.names(kind):
            path = cache.records.path(kind, name)
            if path.stat().st_mtime < time.time() - limits.max_age:
                yield path


def _leftovers(cache: Cache) -> Iterator[Path]:
    root = cache.location.root
    for folder in map(root.joinpath, (*_DISCARDED, "temporary")):
        if folder.is_dir():
            yield from (path for path in folder.rglob("*") if path.is_file())


def _remove_leftovers(cache: Cache) -> None:
    root = cache.location.root
    for name in _DISCARDED:
        shutil.rmtree(root / name, ignore_errors=True)
    sweep(root / "temporary")
