"""Results of actions in the cache, and their signatures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct, field

from epctx.files import digest
from epctx.files.digest import Digest
from epctx.signing.dsse import Signature

T = TypeVar("T")


class StoredFile(Struct, frozen=True, kw_only=True):
    """A file that an action made: `name` in its folder, with `/`; BLAKE3 `digest`."""

    name: str
    size: int
    digest: Digest


class StoredAction(Struct, Generic[T], frozen=True, kw_only=True):
    """Result of an action.

    Attributes:
        kind: which action.
        record: the key's record as JSON, of which the key is the digest (epctx.keys).
        result: what it told, apart from files.
        files: what it made, as objects of the cache.
        signatures: who vouches for it (cache.remote.signing).
        fetched: it came from a shared cache: it is as good as its signatures.
    """

    kind: str
    record: msgspec.Raw
    result: T
    files: tuple[StoredFile, ...] = ()
    signatures: tuple[Signature, ...] = ()
    fetched: bool = False


class Origin(Struct, frozen=True, kw_only=True):
    """Origin of a result that was not computed in this build.

    Attributes:
        remote: the URL of the shared cache that it, or a file of it, came from now; None: it was
            in the local cache.
        signer: the name of the trusted key that signed it; None: none did.
    """

    remote: str | None = None
    signer: str | None = None


class RemoteReport(Struct, frozen=True, kw_only=True):
    """Use of a shared cache in a build.

    Attributes:
        url: without credentials.
        records: action records that came from it.
        objects: files that came from it, `fetched` bytes.
        pushed: actions that were put there.
        not_pushed: actions that were to be put there.
        refused: what was not believed or did not work, in words: how often.
    """

    url: str
    records: int = 0
    objects: int = 0
    fetched: int = 0
    pushed: int = 0
    not_pushed: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)


def key_of(record: msgspec.Raw) -> Digest | None:
    """Return the key of a record; None if the record is no JSON."""
    try:
        return digest.of_json(msgspec.json.decode(record))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
