"""Small documents by name, each with its own digest: read whole and right, or taken as missing."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from epctx import codec, limits
from epctx.cache.location import Location, refusing
from epctx.cache.quarantine import Quarantine
from epctx.cache.temporary import Temporary, settle
from epctx.files import digest, open_flags
from epctx.files.entries import entries

T = TypeVar("T")
Kind = Literal["actions", "digests", "groups", "pace"]
KINDS: tuple[Kind, ...] = ("actions", "digests", "groups", "pace")
_HOUR = 3600
_SUM = 64
"""Length of the BLAKE3 in hex that a record begins with; a line break follows, then JSON."""


class Records(Struct, frozen=True, kw_only=True):
    """The records of a cache, by kind and name (a digest in hex). Thread- and process-safe."""

    location: Location
    temporary: Temporary
    quarantine: Quarantine

    def path(self, kind: Kind, name: str) -> Path:
        """Return the place of a record."""
        return self.location.root / kind / name[:2] / name

    def read(self, kind: Kind, name: str, form: type[T], *, used: bool = False) -> T | None:
        """A record; None where there is none, or none to be trusted, which is told and set aside.

        A record of another form, which another version of epctx wrote, is none either.

        Args:
            used: note, to the hour, that it was of use now: gc removes what was not for long.
        """
        path = self.path(kind, name)
        read = self.quarantine.read(path, lambda file: file.read(limits.RECORD_BYTES.value))
        if read is None:
            return None
        found, content = read
        payload = content[_SUM + 1 :]
        if content[:_SUM] != _sum(kind, name, payload):
            self.quarantine.take(path, found, "is corrupt")
            return None
        if used and not self.location.readonly and found.st_mtime < time.time() - _HOUR:
            with contextlib.suppress(OSError):
                os.utime(path)
        try:
            return codec.decode(payload, form)
        except msgspec.MsgspecError:
            return None

    def refuse(self, kind: Kind, name: str, why: str) -> None:
        """Set aside a record that is whole, and cannot be right."""
        self.quarantine.take(self.path(kind, name), None, why)

    def write(self, kind: Kind, name: str, value: object) -> None:
        """Put a record in its place, whole or not at all; nothing in a read-only cache."""
        if self.location.readonly:
            return
        payload = codec.encode(value)
        temporary = self.temporary.path()
        with refusing(temporary):
            descriptor = os.open(temporary, open_flags.NEW, self.location.record_mode)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(_sum(kind, name, payload) + b"\n" + payload)
        settle(temporary, self.path(kind, name))

    def names(self, kind: Kind) -> Iterator[str]:
        """The names of all records of a kind."""
        yield from (entry.name for entry in entries(self.location.root / kind))


def _sum(kind: Kind, name: str, payload: bytes) -> bytes:
    # The place is hashed too: a record that was moved or renamed is not this one.
    return digest.of_chunks((f"{kind}/{name}\n".encode(), payload)).hex.encode()
