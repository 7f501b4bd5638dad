"""Interface of remote stores of blobs by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from epctx.transfer.attempts import StoreError

_NAME = re.compile(r"v1/(objects|actions)/[0-9a-f]{64}")


class Stored(Struct, frozen=True, kw_only=True):
    """Entry of a listing about a blob: `size` in bytes, `modified` in seconds since 1970."""

    name: str
    size: int
    modified: float


class Store(Protocol):
    """Blobs by name, as `v1/objects/<BLAKE3 in hex>`. Thread-safe.

    Every method may raise `StoreError` after its last attempt. Methods check only the length of a
    blob; the caller checks the content.
    """

    @property
    def url(self) -> str:
        """URL without credentials."""
        ...

    def read(self, name: str, most: int) -> bytes | None:
        """Return a small blob; None if it does not exist. More than `most` bytes are an error."""
        ...

    def stream(self, name: str, size: int) -> Iterator[bytes] | None:
        """Return a blob in pieces, resumed after an interruption; None if it does not exist.

        The pieces end with an error if they do not have exactly `size` bytes.
        """
        ...

    def size(self, name: str) -> int | None:
        """Return the length of a blob in bytes; None if it does not exist."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a small blob unless it has this content already.

        Other content is replaced: it is incomplete, or a record whose signer is no longer trusted.
        """
        ...

    def upload(self, name: str, source: Path) -> None:
        """Write a file unless a blob of its length exists; parts may be sent in parallel."""
        ...

    def list(self, prefix: str) -> Iterator[Stored]:
        """Yield the blobs whose names begin with `prefix`."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Remove blobs; a missing one is no error."""
        ...


def is_name(name: str) -> bool:
    """Return whether a blob may have this name. Only such names become paths or parts of URLs."""
    return _NAME.fullmatch(name) is not None


def checked(name: str) -> str:
    """Return the name of a blob if it is allowed.

    Raises:
        StoreError: the name is not allowed.
    """
    if not is_name(name):
        raise StoreError("the name of a requested blob is not valid")
    return name


def holds(store: Store, name: str, content: bytes) -> bool:
    """Return whether a blob has exactly this content. Raises StoreError."""
    size = len(content)
    return store.size(name) == size and store.read(name, size) == content
