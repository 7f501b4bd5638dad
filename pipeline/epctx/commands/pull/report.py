"""What `epctx pull` did."""

from __future__ import annotations

from typing import Literal

from epctx.text import Brief


class PullReport(Brief, frozen=True, kw_only=True):
    """A package out of a registry.

    Attributes:
        reference: where it is.
        folder: where it is now.
        digest: of its manifest, `sha256:…`.
        state: pulled, or up to date: the same was there.
        files: how many files it has.
        size: of all different ones, in bytes.
        attached: what came with it, by name: the signature in the folder, attestations beside it.
    """

    reference: str
    folder: str
    digest: str
    state: Literal["pulled", "up to date"]
    files: int
    size: int
    attached: tuple[str, ...]
