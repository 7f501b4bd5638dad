"""Which keys the actions of a manifest had last, so that a plan can say what has changed since, and
how long its groups took, so that a build can say how long it will take.
"""

from __future__ import annotations

import threading
from pathlib import Path

from msgspec import Struct

from epctx import codec
from epctx.cache.records import Records
from epctx.files import digest
from epctx.files.digest import Digest


class _Last(Struct, frozen=True, kw_only=True):
    """The last keys of a manifest's actions, each by its group, action and subject as JSON; and the
    seconds of its groups.
    """

    manifest: str
    keys: dict[str, Digest]
    seconds: dict[str, float]


class History:
    """The last keys and times of one manifest's actions, in this cache. Thread-safe.

    Args:
        records: of the cache.
        manifest: its path; the cache has a digest of it.
    """

    def __init__(self, *, records: Records, manifest: Path) -> None:
        self.manifest = manifest
        self._records = records
        self._name = digest.of_json(manifest.as_posix()).hex
        self._guard = threading.Lock()
        found = records.read("latest", self._name, _Last)
        if found is None or found.manifest != manifest.as_posix():
            found = _Last(manifest=manifest.as_posix(), keys={}, seconds={})
        self._last = found
        self._changed = False

    def last(self, group: str, action: str, subject: str) -> Digest | None:
        """The key that an action had last; None: it never was carried out for this manifest."""
        return self._last.keys.get(_place(group, action, subject))

    def note(self, group: str, action: str, subject: str, key: Digest) -> None:
        """Remember the key of an action that was carried out, or whose result was used.

        Args:
            group: `group@target`.
            action: optimize, compile, verify.
            subject: the model, the session group or the group itself.
            key: of the action.
        """
        place = _place(group, action, subject)
        with self._guard:
            if self._last.keys.get(place) != key:
                self._last.keys[place] = key
                self._changed = True

    def seconds(self, group: str) -> float | None:
        """How long the stages of a group took together when it was compiled last; None: unknown."""
        return self._last.seconds.get(group)

    def note_seconds(self, group: str, seconds: float) -> None:
        """Remember how long the stages of a group took."""
        with self._guard:
            self._last.seconds[group] = seconds
            self._changed = True

    def save(self) -> None:
        """Write what was noted, if any of it is new.

        Raises:
            StorageError: the cache cannot be written.
        """
        with self._guard:
            if self._changed:
                self._records.write("latest", self._name, self._last)
                self._changed = False


def _place(group: str, action: str, subject: str) -> str:
    return codec.encode((group, action, subject)).decode()
