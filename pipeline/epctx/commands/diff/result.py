"""What `epctx diff` tells."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctx.lockfile.types import LockedFile
from epctx.text import Brief

Area = Literal[
    "toolchain", "host", "source", "setting", "code", "key", "partition", "binary",
    "metadata", "model", "node", "attribute", "tensor",
]  # fmt: skip
"""Causes first, then what came of them."""


class Changed(Struct, frozen=True, kw_only=True):
    """One thing that differs, but for the bytes of files.

    Attributes:
        area: toolchain, host, source, setting: causes; code: of epctx itself, key: of an action:
            both told only where no cause is; partition: who took which nodes; binary: what a
            context binary says of itself; the rest: of a model file, metadata being what only
            describes it.
        where: the source, EP, group, model, or place in a file.
        what: in words, old and new.
    """

    area: Area
    where: str
    what: str


class ChangedFile(Struct, frozen=True, kw_only=True):
    """A file that is another, or that only one side has.

    Attributes:
        file: `<target>/<group>/<name>`; of two locks of several kinds of host, after that the kind.
        old, new: None: that side does not have it.
        difference: the first one in bytes; None where one side is no file on this disk.
    """

    file: str
    old: LockedFile | None
    new: LockedFile | None
    difference: str | None = None


class Comparison(Brief, frozen=True, kw_only=True):
    """All that differs.

    Attributes:
        old, new: as they were named.
        same: nothing differs of what both sides tell.
        same_files: how many files of both sides are the same.
        not_compared: what only one side tells, in words.
    """

    old: str
    new: str
    same: bool
    differences: tuple[Changed, ...]
    files: tuple[ChangedFile, ...]
    same_files: int
    not_compared: tuple[str, ...] = ()
