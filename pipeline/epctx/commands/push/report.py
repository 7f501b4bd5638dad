"""What `epctx push` did."""

from __future__ import annotations

from typing import Literal

from epctx.text import Brief


class PushReport(Brief, frozen=True, kw_only=True):
    """A package in a registry.

    Attributes:
        reference: where it is.
        digest: of its manifest, `sha256:…`: always the same for the same package.
        state: pushed, or up to date: the same was there.
        files: how many files it has.
        size: of all different ones, in bytes.
        sent: bytes that were not in the repository.
        mounted: bytes that the registry took from another repository of its own.
        attached: the signature and the attestations that are there with it, by name.
    """

    reference: str
    digest: str
    state: Literal["pushed", "up to date"]
    files: int
    size: int
    sent: int
    mounted: int
    attached: tuple[str, ...]
