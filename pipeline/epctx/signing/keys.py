"""Whose signatures these are: private keys that sign, public keys and authorities that are trusted.

Keys are those that OpenSSF Model Signing has: ECDSA on P-256, P-384 and P-521, in PEM.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeGuard, TypeVar

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

PACKAGE: Final = "cryptography.hazmat.primitives.asymmetric"
EXTRA: Final = "sign"
_CURVES: Final = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
"""The hash that ECDSA is used with, by curve."""
_BYTES: Final = 1 << 18
"""A file of keys or certificates has at most."""
_T = TypeVar("_T")
StrPath: TypeAlias = "str | os.PathLike[str]"


class Signer(Struct, frozen=True, kw_only=True):
    """A private key, and the certificates that tell whose it is: its own, then its issuers'."""

    key: ec.EllipticCurvePrivateKey
    chain: tuple[x509.Certificate, ...] = ()

    @property
    def name(self) -> str:
        """Who signs, for people: the subject of the certificate, or which key."""
        if self.chain:
            return self.chain[0].subject.rfc4514_string()
        return named(fingerprint(self.key.public_key()))

    def sign(self, content: bytes) -> bytes:
        """The signature of some bytes: always the same one."""
        from cryptography.hazmat.primitives.asymmetric import ec

        hashed = ec.ECDSA(_hash(self.key.public_key()), deterministic_signing=True)
        return self.key.sign(content, hashed)

    @classmethod
    def asked(
        cls, key: StrPath | None, cert: StrPath | None, chain: StrPath | None
    ) -> Signer | None:
        """Who signs, by the files that were named; None: nobody.

        Raises:
            UsageError: a certificate is named without a key; else as `load` raises.
        """
        if key is not None:
            certificates = (None if each is None else Path(each) for each in (cert, chain))
            return cls.load(Path(key), *certificates)
        if cert is not None or chain is not None:
            raise UsageError(
                "a certificate is of a key that signs, and none is named",
                remedy="name the key with --sign, or leave out --cert and --chain",
                code=Code.COMMAND_LINE,
            )
        return None

    @classmethod
    def load(cls, key: Path, cert: Path | None = None, chain: Path | None = None) -> Signer:
        """The signer of these PEM files.

        Args:
            cert: the certificate of the key; None: whoever verifies has its public key.
            chain: those of its issuers, the nearest first.

        Raises:
            UsageError: one cannot be read, is not what it must be, or is not of the key;
                `cryptography` is not installed.
        """
        UsageError.if_missing(PACKAGE, EXTRA)
        from cryptography import x509

        private = _private(key)
        if cert is None:
            if chain is not None:
                raise _refused(chain, "is of no certificate", "name the key's own with --cert")
            return cls(key=private)
        own, *others = _parsed(cert, x509.load_pem_x509_certificates, _CERTIFICATE)
        if own.public_key() != private.public_key():
            raise _refused(cert, "is of another key", f"name the certificate of {key.as_posix()}")
        if chain is not None:
            others += _parsed(chain, x509.load_pem_x509_certificates, _CERTIFICATE)
        return cls(key=private, chain=(own, *others))


class Trusted(Struct, frozen=True, kw_only=True):
    """Whose signatures count: public keys by their fingerprints, and certificate authorities."""

    keys: Mapping[str, ec.EllipticCurvePublicKey]
    authorities: tuple[x509.Certificate, ...]

    @classmethod
    def load(cls, keys: Sequence[Path], authorities: Sequence[Path]) -> Trusted | None:
        """Those of PEM files; None: no file is named.

        Raises:
            UsageError: as `Signer.load`.
        """
        if not keys and not authorities:
            return None
        UsageError.if_missing(PACKAGE, EXTRA)
        from cryptography import x509

        read = x509.load_pem_x509_certificates
        roots = [_parsed(path, read, _CERTIFICATE) for path in authorities]
        return cls(
            keys={fingerprint(each): each for each in map(_public, keys)},
            authorities=tuple(each for found in roots for each in found),
        )


def holds(key: ec.EllipticCurvePublicKey, signature: bytes, content: bytes) -> bool:
    """Whether a signature is one of these bytes by this key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key.verify(signature, content, ec.ECDSA(_hash(key)))
    except InvalidSignature:
        return False
    return True


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """What a signature calls its key, as OpenSSF Model Signing does: the SHA-256 of its PEM."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


def named(fingerprint: str) -> str:
    """A key for people."""
    return f"the key {fingerprint[:16]}…"


def is_curve(key: object) -> TypeGuard[ec.EllipticCurvePublicKey]:
    """Whether a public key is of a kind that may sign."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES


def der(certificate: x509.Certificate) -> str:
    """A certificate as base64."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return base64.b64encode(certificate.public_bytes(Encoding.DER)).decode()


_KEY: Final = (
    "is no private key in PEM without a password",
    "make one with `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem`",
)
_PUBLIC: Final = ("is no public key in PEM", "make it with `openssl pkey -in key.pem -pubout`")
_KIND: Final = (
    "is a key of another kind than those that sign models",
    f"use ECDSA on P-256, P-384 or P-521: {_KEY[1]}",
)
_CERTIFICATE: Final = ("has no certificate in PEM", "name a file that has BEGIN CERTIFICATE")


def _parsed(path: Path, parse: Callable[[bytes], _T], refusal: tuple[str, str]) -> _T:
    from cryptography.exceptions import UnsupportedAlgorithm

    what, remedy = refusal
    file = path.as_posix()
    with (
        UsageError.if_refused("cannot be read", file=file, remedy="check the path and its rights"),
        path.open("rb") as stream,
    ):
        content = stream.read(_BYTES)
    try:
        return parse(content)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # its text may be of the key
        raise _refused(path, what, remedy) from error


def _private(path: Path) -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = _parsed(path, lambda pem: load_pem_private_key(pem, None), _KEY)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not is_curve(key.public_key()):
        raise _refused(path, *_KIND)
    return key


def _public(path: Path) -> ec.EllipticCurvePublicKey:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = _parsed(path, load_pem_public_key, _PUBLIC)
    if not is_curve(key):
        raise _refused(path, *_KIND)
    return key


def _refused(path: Path, what: str, remedy: str) -> UsageError:
    return UsageError(what, file=path.as_posix(), remedy=remedy, code=Code.COMMAND_LINE)


def _hash(key: ec.EllipticCurvePublicKey) -> hashes.HashAlgorithm:
    from cryptography.hazmat.primitives import hashes

    hashed: hashes.HashAlgorithm = getattr(hashes, _CURVES[key.curve.name])()
    return hashed
