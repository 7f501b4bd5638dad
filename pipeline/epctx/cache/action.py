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
    """A file that an action made. `name`: path in its folder, with `/`. `digest`: BLAKE3."""

    name: str
    size: int
    digest: Digest


class StoredAction(Struct, Generic[T], frozen=True, kw_only=True):
    """Result of an action.

    Attributes:
        kind: kind of the action.
        record: the key's record as JSON; the key is the digest of this record (epctx.keys).
        result: the action's result, apart from files.
        files: files that the action made, as objects of the cache.
        signatures: signatures of the action (cache.remote.signing).
        fetched: the action came from a shared cache, so it counts only if a trusted key signed it.
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
        remote: URL of the shared cache from which this build fetched the result or one of its
            files; None if all was in the local cache.
        signer: name of the trusted key that signed the result; None if no trusted key did.
    """

    remote: str | None = None
    signer: str | None = None


class RemoteReport(Struct, frozen=True, kw_only=True):
    """Use of a shared cache in a build.

    Attributes:
        url: URL of the shared cache, without credentials.
        records: action records that were fetched.
        objects: files that were fetched, `fetched` bytes together.
        pushed: actions that were pushed.
        not_pushed: actions that could not be pushed.
        refused: how often each kind of refusal or failure occurred, by its description.
    """

    url: str
    records: int = 0
    objects: int = 0
    fetched: int = 0
    pushed: int = 0
    not_pushed: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)


def key_of(record: msgspec.Raw) -> Digest | None:
    """Return the key of a record; None if the record is not JSON."""
    try:
        return digest.of_json(msgspec.json.decode(record))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
