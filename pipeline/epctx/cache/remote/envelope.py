"""What a shared cache has of an action: a DSSE envelope, signed over all that is believed of it.

The payload is one line of JSON: the version of this form, the key, and of the action its kind, the
key's record (which has the toolchain), its result and its files. Record and result are the very
bytes that the local cache keeps, so the payload can be made again from there, and its signatures
verified again under the trust of another day. DSSE v1: https://github.com/secure-systems-lab/dsse.
"""

from __future__ import annotations

import base64
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from epctx import codec, limits
from epctx.cache.action import Signature, StoredAction, StoredFile, key_of
from epctx.files import paths
from epctx.files.digest import Digest
from epctx.signing import dsse

TYPE: Final = "application/vnd.epctx.action+json"
VERSION: Final = 1
_SIGNATURES: Final = 16
"""An envelope has at most."""


class Damaged(Exception):
    """An envelope is none, or tells what cannot be; the text is one clause."""


Kind = Annotated[str, Meta(pattern="^[a-z]{1,32}$")]


class _Payload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1]
    key: Digest
    kind: Kind
    record: msgspec.Raw
    result: msgspec.Raw
    files: tuple[StoredFile, ...]


class _Envelope(Struct, frozen=True, kw_only=True, rename={"kind": "payloadType"}):
    payload: str
    kind: str
    signatures: tuple[Signature, ...]


def payload(key: Digest, action: StoredAction[msgspec.Raw]) -> bytes:
    """What is signed of an action: always the same bytes."""
    return codec.encode(
        _Payload(
            version=VERSION,
            key=key,
            kind=action.kind,
            record=action.record,
            result=action.result,
            files=action.files,
        )
    )


def signed(content: bytes) -> bytes:
    """Of a payload the bytes that Ed25519 signs."""
    return dsse.pae(TYPE, content)


def seal(key: Digest, action: StoredAction[msgspec.Raw]) -> bytes:
    """The envelope of an action that is signed."""
    content = base64.b64encode(payload(key, action)).decode()
    return codec.encode(_Envelope(payload=content, kind=TYPE, signatures=action.signatures))


def unseal(key: Digest, envelope: bytes) -> StoredAction[msgspec.Raw]:
    """The action of an envelope that is to be that of `key`; who signed it is not looked at.

    Raises:
        Damaged: it has another form or version, is of another key, or has more, larger or other
            files than an action can have.
    """
    try:
        sealed = codec.decode(envelope, _Envelope)
        content = dsse.decoded(sealed.payload)
        told = codec.decode(content, _Payload)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Damaged(f"is no action of version {VERSION}") from error
    if sealed.kind != TYPE or not 0 < len(sealed.signatures) <= _SIGNATURES:
        raise Damaged("has another type, or no signatures")
    if told.key != key or key_of(told.record) != key:
        raise Damaged("is of another key")
    _refuse_files(told.files)
    action = StoredAction(
        kind=told.kind,
        record=told.record,
        result=told.result,
        files=told.files,
        signatures=sealed.signatures,
        fetched=True,
    )
    if payload(key, action) != content:
        raise Damaged("is not written as epctx writes it")
    return action


def _refuse_files(files: tuple[StoredFile, ...]) -> None:
    names = {file.name.casefold() for file in files}
    if len(files) > limits.REMOTE_FILES.value or len(names) < len(files):
        raise Damaged("tells of too many files, or of one twice")
    if not all(paths.is_plain(file.name) for file in files):
        raise Damaged("tells of a file outside its folder")
    most = limits.FILE_BYTES.value
    if not all(0 <= file.size <= most and file.digest.algorithm == "blake3" for file in files):
        raise Damaged("tells of a file that cannot be")
