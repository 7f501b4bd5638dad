"""Contents of the cache in numbers, and a check of all of them."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from epctx.cache.action import StoredAction
from epctx.cache.digests import remembered_files
from epctx.cache.records import KINDS
from epctx.cache.store import Cache

_TOLD: Final = ("optimize", "calibrate", "quantize", "compile", "recording", "verify", "compose")
"""The kinds of actions that are told of even if there is none."""


class Info(Struct, frozen=True, kw_only=True):
    """A cache in numbers; sizes in bytes.

    Attributes:
        actions: how many results of each kind of action.
        remembered: files whose digest is remembered.
        quarantined: files that were found corrupt.
        remote: the shared cache behind it, without credentials; None: there is none.
        trusts: the names of the keys whose signatures count.
        signs: there is a signing key, so what is built is pushed.
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
        objects: objects read.
        size: of these, in bytes.
        records: records read.
        corrupt: what was corrupt; it was set aside, unless the cache is read-only.
        incomplete: actions that had lost an object; they will be carried out again.
        elsewhere: actions of which the shared cache gave the record alone; their files come from
            there when they are needed, or they are carried out.
    """

    folder: str
    objects: int
    size: int
    records: int
    corrupt: tuple[str, ...]
    incomplete: int
    elsewhere: int = 0


def info(cache: Cache) -> Info:
    """Count what is in the cache."""
    actions = dict.fromkeys(_TOLD, 0)
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
    """Read everything. What is corrupt is set aside and told, and will be made again.

    Needs no lock: what is there is whole, whoever writes beside it.
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
    )
