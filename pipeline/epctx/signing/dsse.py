"""DSSE v1, envelopes of signed content: https://github.com/secure-systems-lab/dsse."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from msgspec import Struct


class Signature(Struct, frozen=True, kw_only=True):
    """Signature in base64, and the name of its key; None if the envelope does not name a key."""

    sig: str
    keyid: str | None = None


class Envelope(Struct, frozen=True, kw_only=True, rename="camel"):
    """Payload in base64, its type, and the signatures of both; not verified."""

    payload: str
    payload_type: str
    signatures: tuple[Signature, ...]

    @classmethod
    def of(cls, kind: str, content: bytes, signatures: Sequence[Signature]) -> Envelope:
        """Put a payload and its signatures into an envelope."""
        return cls(payload=encoded(content), payload_type=kind, signatures=tuple(signatures))


def pae(kind: str, content: bytes) -> bytes:
    """Pre-authentication encoding of a payload and its type: the bytes that are signed."""
    kind_bytes = kind.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind_bytes), kind_bytes, len(content), content)


def encoded(content: bytes) -> str:
    """Encode bytes as base64."""
    return base64.b64encode(content).decode()


def decoded(text: str) -> bytes:
    """Decode base64. Raises ValueError."""
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from error
