"""Which keys the actions of a manifest had last, so that a plan can say what has changed since."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from epctx.cache.records import Records
from epctx.files import digest
from epctx.files.digest import Digest


@dataclass(frozen=True, kw_only=True)
class History:
    """The last keys of one manifest's actions, in this cache.

    Attributes:
        records: of the cache.
        manifest: its path; the cache has a digest of it.
    """

    records: Records
    manifest: Path

    def last(self, group: str, action: str, subject: str) -> Digest | None:
        """The key that an action had last; None: it never was carried out for this manifest."""
        return self.records.read("latest", self._name(group, action, subject), Digest)

    def note(self, group: str, action: str, subject: str, key: Digest) -> None:
        """Remember the key of an action that was carried out, or whose result was used.

        Args:
            group: `group@target`.
            action: optimize, compile, verify.
            subject: the model, the session group or the group itself.
            key: of the action.

        Raises:
            StorageError: the cache cannot be written.
        """
        if self.last(group, action, subject) != key:
            self.records.write("latest", self._name(group, action, subject), key)

    def _name(self, group: str, action: str, subject: str) -> str:
        return digest.of_json([self.manifest.as_posix(), group, action, subject]).hex
