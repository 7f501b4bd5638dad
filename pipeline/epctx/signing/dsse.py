"""DSSE v1, the envelope of what is signed: https://github.com/secure-systems-lab/dsse."""

from __future__ import annotations

import base64
import binascii


def pae(kind: str, content: bytes) -> bytes:
    """The pre-authentication encoding of a payload and its type: the bytes that are signed."""
    named = kind.encode()
    return b"DSSEv1 %d %s %d %s" % (len(named), named, len(content), content)


def decoded(text: str) -> bytes:
    """The bytes of a base64 text. Raises ValueError."""
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from error
