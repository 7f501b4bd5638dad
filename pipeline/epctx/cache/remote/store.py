"""Interface of remote stores: blobs by name, put once and never changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from epctx.transfer.attempts import StoreError

_NAME = re.compile(r"v1/(objects|actions)/[0-9a-f]{64}")


class Stored(Struct, frozen=True, kw_only=True):
    """A blob as a listing tells of it: `size` in bytes, `modified` in seconds since 1970."""

    name: str
    size: int
    modified: float


class Store(Protocol):
    """Blobs by name, as `v1/objects/<BLAKE3 in hex>`. Thread-safe.

    Every method may raise `StoreError`, after the attempts that it makes. None believes anything
    of what it gets but its length: whoever asked checks the content.
    """

    @property
    def url(self) -> str:
        """URL without credentials."""
        ...

    def read(self, name: str, most: int) -> bytes | None:
        """A small blob, whole; None: there is none. One of more than `most` bytes is an error."""
        ...

    def stream(self, name: str, size: int) -> Iterator[bytes] | None:
        """A blob of `size` bytes in pieces, in order, resumed where it breaks; None: there is none.

        Ends with an error as soon as there is less or more.
        """
        ...

    def size(self, name: str) -> int | None:
        """The length of a blob; None: there is none."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Put a small blob where there is not that very content.

        What differs is replaced: it is a torn one, or a record whose signer is trusted no more.
        """
        ...

    def upload(self, name: str, source: Path) -> None:
        """Put a file where there is none of its length, in parts beside each other."""
        ...

    def list(self, prefix: str) -> Iterator[Stored]:
        """The blobs whose names begin so."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Remove blobs; one that is gone already is none to tell of."""
        ...


def is_name(name: str) -> bool:
    """Return whether a blob may have this name: no other becomes a path or part of a URL."""
    return _NAME.fullmatch(name) is not None


def checked(name: str) -> str:
    """The name, if a blob may be called so.

    Raises:
        StoreError: it may not.
    """
    if not is_name(name):
        raise StoreError("it was asked for what no blob is called")
    return name


def holds(store: Store, name: str, content: bytes) -> bool:
    """Return whether a blob has this very content. Raises StoreError."""
    size = len(content)
    return store.size(name) == size and store.read(name, size) == content
