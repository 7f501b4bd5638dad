"""The cache as a build uses it: what actions made, digests of sources, facts about models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from epctx import codec
from epctx.cache import locks, temporary
from epctx.cache.digests import RememberedDigests
from epctx.cache.location import Location
from epctx.cache.locks import Waiting
from epctx.cache.objects import Objects
from epctx.cache.quarantine import Notice, Quarantine
from epctx.cache.records import Records
from epctx.cache.temporary import Temporary
from epctx.files import digest, paths
from epctx.files.digest import Digest

T = TypeVar("T")
ActionKind = Literal[
    "optimize", "calibrate", "quantize", "compile", "recording", "verify", "compose"
]


class StoredFile(Struct, frozen=True, kw_only=True):
    """A file that an action made: `name` in its folder, with `/`; BLAKE3 `digest`."""

    name: str
    size: int
    digest: Digest


class Action(Struct, Generic[T], frozen=True, kw_only=True):
    """What an action made.

    Attributes:
        kind: which action.
        record: the key's record as JSON, of which the key is the digest (epctx.keys).
        result: what it told, apart from files.
        files: what it made, as objects of the cache.
    """

    kind: ActionKind
    record: msgspec.Raw
    result: T
    files: tuple[StoredFile, ...] = ()


class Cache:
    """A cache, opened. Thread-safe; many processes at once.

    Args:
        location: where it is; nothing is made there before something is stored.
        notice: hears of what was found corrupt.
    """

    def __init__(self, location: Location, notice: Notice) -> None:
        self.location = location
        quarantine = Quarantine(location=location, notice=notice)
        self._temporary = Temporary(location)
        self.records = Records(location=location, temporary=self._temporary, quarantine=quarantine)
        self.objects = Objects(location=location, temporary=self._temporary, quarantine=quarantine)
        self.digests = RememberedDigests(self.records)

    @contextmanager
    def shared(self, waiting: Waiting) -> Iterator[None]:
        """Keep gc away meanwhile. What only reads does without: a miss is never wrong."""
        if self.location.readonly:
            yield
            return
        with locks.shared(self.location, waiting):
            try:
                yield
            finally:
                self._temporary.close()

    @contextmanager
    def alone_on(self, key: Digest, waiting: Waiting) -> Iterator[None]:
        """Keep everybody else from carrying out the action `key`; then look again with `find`.

        In a read-only cache nobody could see what the other has made, so nobody waits.
        """
        if self.location.readonly:
            yield
            return
        with locks.of_action(self.location, key.hex, waiting):
            yield

    def find(self, key: Digest, form: type[T]) -> Action[T] | None:
        """What the action `key` made, its result as a `form`; None: it is to be carried out."""
        stored = self.records.read("actions", key.hex, Action[msgspec.Raw], used=True)
        if stored is None:
            return None
        if _digest(stored.record) != key:
            self.records.refuse("actions", key.hex, "has the record of another action")
            return None
        try:
            result = codec.decode(bytes(stored.result), form)
        except msgspec.MsgspecError:
            return None
        return Action(kind=stored.kind, record=stored.record, result=result, files=stored.files)

    def refuse(self, key: Digest, why: str) -> None:
        """Set aside an action whose form is right, and which cannot be what was put there."""
        self.records.refuse("actions", key.hex, why)

    def put(self, key: Digest, action: Action[T], folder: Path) -> None:
        """Store what an action made in `folder`. The files are copied, never linked."""
        for file in action.files:
            self.objects.adopt(folder / file.name, content=file.digest, size=file.size)
        self.records.write("actions", key.hex, action)

    def fetch(self, action: Action[T], folder: Path) -> bool:
        """Copy an action's files into `folder`, each checked on the way.

        False: one was missing or corrupt; then none of them is there, and the action is to be
        carried out again.

        Raises:
            StorageError: the folder cannot be written.
        """
        names = [file.name.casefold() for file in action.files]
        if len(set(names)) < len(names) or not all(map(paths.is_plain, names)):
            return False
        made: list[Path] = []
        for file in action.files:
            target = folder / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            if not self.objects.fetch(file.digest, size=file.size, target=target):
                for path in made:
                    path.unlink(missing_ok=True)
                return False
            made.append(target)
        return True

    def sweep(self) -> None:
        """Remove what processes that were killed have left, also where nothing is to be stored."""
        if not self.location.readonly:
            temporary.sweep(self.location.root / "temporary")

    def close(self) -> None:
        """Remove what is temporary."""
        with contextlib.suppress(OSError):
            self._temporary.close()


def _digest(record: msgspec.Raw) -> Digest | None:
    try:
        return digest.of_json(msgspec.json.decode(record))
    except (msgspec.MsgspecError, RecursionError):
        return None
