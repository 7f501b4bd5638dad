"""DSSE v1, the envelope of what is signed: https://github.com/secure-systems-lab/dsse."""

from __future__ import annotations

import base64
import binascii
import importlib

from epctx.errors import UsageError


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


def require(extra: str) -> None:
    """Raises UsageError where `cryptography` is not installed; `extra` of epctx brings it."""
    try:
        importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    except ImportError as error:
        raise UsageError(
            "signatures need a package that is not installed, cryptography",
            remedy=f'pip install "epctx[{extra}]"',
        ) from error
