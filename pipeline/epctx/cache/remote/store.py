"""What a remote store is to the cache: blobs by name, put once and never changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from msgspec import Struct


class StoreError(Exception):
    """A store did not do what was asked: absent, slow, full, forbidding, or answering nonsense.

    Its text is one clause for people, without credentials. It never ends a build.

    Attributes:
        lasting: it will be the same for whatever else is asked, as with a wrong password.
    """

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


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
        """Where it is, without credentials."""
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
        """Put a small blob, if there is none of that name; where the store cannot tell, over it."""
        ...

    def upload(self, name: str, source: Path) -> None:
        """Put a file, likewise, in parts beside each other where it is large."""
        ...

    def list(self, prefix: str) -> Iterator[Stored]:
        """The blobs whose names begin so."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Remove blobs; one that is gone already is none to tell of."""
        ...
