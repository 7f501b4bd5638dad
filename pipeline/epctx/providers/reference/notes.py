"""The `notes` of the reference EP's nodes."""

from __future__ import annotations

import msgspec


class Notes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `notes` holds, as canonical JSON.

    Attributes:
        graph: the digest of the node's graph with its weights: a binary of another build, found
            at the same place, is not taken for the node's own.
        notes: the option `notes`.
    """

    graph: str
    notes: str

    @property
    def text(self) -> str:
        """The attribute's value."""
        return msgspec.json.encode(self, order="sorted").decode()
