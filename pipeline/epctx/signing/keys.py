"""Private keys for signing, and trusted public keys and certificate authorities.

OpenSSF Model Signing uses ECDSA on P-256, P-384 and P-521, the shared cache Ed25519. Keys and
certificates are files in PEM.
"""

from __future__ import annotations

import datetime
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeGuard, TypeVar, cast

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.files.entries import read_document

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.x509.verification import ExtensionPolicy, Policy

PACKAGE: Final = "cryptography.hazmat.primitives.asymmetric"
EXTRA: Final = "sign"
MOST_CERTIFICATES: Final = 10
"""Greatest number of certificates of one signature."""
_CURVES: Final = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
"""Hash for ECDSA, by curve."""
_BYTES: Final = 1 << 18
"""Greatest size of a file of keys or certificates."""
_T = TypeVar("_T")
StrPath: TypeAlias = "str | os.PathLike[str]"


class Refused(Exception):
    """A signature does not count; the text is one clause."""


class Signer(Struct, frozen=True, kw_only=True):
    """Private key and the certificates of its owner: its own, then its issuers'."""

    key: ec.EllipticCurvePrivateKey
    chain: tuple[x509.Certificate, ...] = ()

    @property
    def name(self) -> str:
        """Subject of the certificate, or the name of the key."""
        if self.chain:
            return self.chain[0].subject.rfc4514_string()
        return key_name(fingerprint(self.key.public_key()))

    def sign(self, content: bytes) -> bytes:
        """Sign bytes; the same bytes have the same signature."""
        from cryptography.hazmat.primitives.asymmetric import ec

        hashed = ec.ECDSA(_hash(self.key.public_key()), deterministic_signing=True)
        return self.key.sign(content, hashed)

    @classmethod
    def from_options(
        cls, key: StrPath | None, cert: StrPath | None, chain: StrPath | None
    ) -> Signer | None:
        """Load the signer that a command's options name; None if they name no key.

        Raises:
            UsageError: a certificate is named without a key; else as `load` raises.
        """
        if key is not None:
            certificates = (None if each is None else Path(each) for each in (cert, chain))
            return cls.load(Path(key), *certificates)
        if cert is not None or chain is not None:
            raise UsageError(
                "a certificate is named without a signing key",
                remedy="name the key with --sign, or leave out --cert and --chain",
                code=Code.COMMAND_LINE,
            )
        return None

    @classmethod
    def load(cls, key: Path, cert: Path | None = None, chain: Path | None = None) -> Signer:
        """Load a signer from PEM files.

        Args:
            cert: certificate of the key; None if verifiers have the public key.
            chain: certificates of its issuers, the nearest first.

        Raises:
            UsageError: a file cannot be read, has other content, or is not of the key;
                `cryptography` is not installed.
        """
        UsageError.if_missing(PACKAGE, EXTRA)
        from cryptography import x509

        private = _read_private(key)
        if cert is None:
            if chain is not None:
                raise _refused(
                    chain, "is a chain without a certificate", "name the key's own with --cert"
                )
            return cls(key=private)
        own, *others = _read(cert, x509.load_pem_x509_certificates, _CERTIFICATE)
        if own.public_key() != private.public_key():
            raise _refused(cert, "is of another key", f"name the certificate of {key.as_posix()}")
        if chain is not None:
            others += _read(chain, x509.load_pem_x509_certificates, _CERTIFICATE)
        return cls(key=private, chain=(own, *others))


class Trusted(Struct, frozen=True, kw_only=True):
    """Trusted public keys by their fingerprints, and trusted certificate authorities."""

    keys: Mapping[str, ec.EllipticCurvePublicKey]
    authorities: tuple[x509.Certificate, ...]

    @classmethod
    def load(cls, keys: Sequence[Path], authorities: Sequence[Path]) -> Trusted | None:
        """Load keys and authorities from PEM files; None if no file is named.

        Raises:
            UsageError: as `Signer.load`.
        """
        if not keys and not authorities:
            return None
        UsageError.if_missing(PACKAGE, EXTRA)
        from cryptography import x509

        load = x509.load_pem_x509_certificates
        return cls(
            keys={fingerprint(each): each for each in map(_read_public, keys)},
            authorities=tuple(
                each for path in authorities for each in _read(path, load, _CERTIFICATE)
            ),
        )

    def certified_key(self, chain: Sequence[bytes]) -> tuple[ec.EllipticCurvePublicKey, str]:
        """Return the key and the subject of the first certificate, if an authority certifies it
        today.

        Args:
            chain: certificates in DER: the signer's own, then its issuers'.

        Raises:
            Refused: the chain does not end at a trusted authority, is expired, or is not for
                signatures.
        """
        from cryptography import x509
        from cryptography.x509 import verification

        if not 0 < len(chain) <= MOST_CERTIFICATES:
            raise Refused(f"has {len(chain)} certificates, not 1 to {MOST_CERTIFICATES}")
        try:
            leaf, *others = (x509.load_der_x509_certificate(each) for each in chain)
            policy = verification.PolicyBuilder().time(datetime.datetime.now(datetime.UTC))
            policy = policy.store(verification.Store(list(self.authorities)))
            policy = policy.extension_policies(
                ca_policy=_issuer_policy(), ee_policy=verification.ExtensionPolicy.permit_all()
            )
            policy.build_client_verifier().verify(leaf, others)
            _require_signature_usage(leaf)
            public = leaf.public_key()
        except verification.VerificationError as error:
            why = str(error).rpartition("exhausted: ")[2]
            why = "none of its issuers is trusted" if "no interior errors" in why else why
            raise Refused(f"is not certified by a trusted authority today: {why}") from error
        except (ValueError, TypeError, x509.DuplicateExtension) as error:
            raise Refused(f"has an invalid certificate: {error}") from error
        if not is_curve(public):
            raise Refused("has a certificate for an unsupported kind of key")
        return public, leaf.subject.rfc4514_string()


def holds(
    key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey, signature: bytes, content: bytes
) -> bool:
    """Return whether a key signed these bytes."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, content)
        else:
            key.verify(signature, content, ec.ECDSA(_hash(key)))
    except InvalidSignature:
        return False
    return True


def private_key(pem: bytes) -> object:
    """Parse a private key in PEM without a password; None if it is something else."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # the error's text may quote the key
        return None


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Name of a key in a signature, as in OpenSSF Model Signing: the SHA-256 of its PEM."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


def key_name(fingerprint: str) -> str:
    """Name of a key in messages."""
    return f"the key {fingerprint[:16]}…"


def is_curve(key: object) -> TypeGuard[ec.EllipticCurvePublicKey]:
    """Return whether a public key is of a kind that may sign models."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES


_KEY: Final = (
    "is not a private key in PEM without a password",
    "make one with `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem`",
)
_PUBLIC: Final = ("is not a public key in PEM", "make it with `openssl pkey -in key.pem -pubout`")
_KIND: Final = (
    "is a key of a kind that cannot sign models",
    f"use ECDSA on P-256, P-384 or P-521: {_KEY[1]}",
)
_CERTIFICATE: Final = ("has no certificate in PEM", "name a file that has BEGIN CERTIFICATE")


def _read(path: Path, parse: Callable[[bytes], _T | None], refusal: tuple[str, str]) -> _T:
    """Read and parse a file. `refusal`: message and remedy for other content."""
    from cryptography.exceptions import UnsupportedAlgorithm

    file = path.as_posix()
    with UsageError.if_refused("cannot be read", file=file, remedy="check the path and its rights"):
        content = read_document(path, _BYTES, pipes=True)
    try:
        value = parse(content)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _refused(path, *refusal) from error
    if value is None:
        raise _refused(path, *refusal)
    return value


def _read_private(path: Path) -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    key = _read(path, private_key, _KEY)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not is_curve(key.public_key()):
        raise _refused(path, *_KIND)
    return key


def _read_public(path: Path) -> ec.EllipticCurvePublicKey:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = _read(path, load_pem_public_key, _PUBLIC)
    if not is_curve(key):
        raise _refused(path, *_KIND)
    return key


def _refused(path: Path, what: str, remedy: str) -> UsageError:
    return UsageError(what, file=path.as_posix(), remedy=remedy, code=Code.COMMAND_LINE)


def _hash(key: ec.EllipticCurvePublicKey) -> hashes.HashAlgorithm:
    from cryptography.hazmat.primitives import hashes

    hashed: hashes.HashAlgorithm = getattr(hashes, _CURVES[key.curve.name])()
    return hashed


def _require_signature_usage(leaf: x509.Certificate) -> None:
    """Require a certificate for signatures; for code signing, if its use is more specific.

    Raises:
        Refused: it is for another use, or states none.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    extensions = {type(each.value): each.value for each in leaf.extensions}
    usage = cast("x509.KeyUsage | None", extensions.get(x509.KeyUsage))
    extended = cast("x509.ExtendedKeyUsage | None", extensions.get(x509.ExtendedKeyUsage))
    signs = usage is None or usage.digital_signature
    of_code = extended is None or ExtendedKeyUsageOID.CODE_SIGNING in extended
    if not (signs and of_code) or (usage is None and extended is None):
        raise Refused("has a certificate that is not for signatures")


def _issuer_policy() -> ExtensionPolicy:
    """Rules of RFC 5280 for an issuer: an authority; if it states the use of its key, certifying.

    The stricter rules of the web ask for fields that `openssl req -x509` does not write.
    """
    from cryptography import x509
    from cryptography.x509.verification import Criticality, ExtensionPolicy

    return (
        ExtensionPolicy.permit_all()
        .require_present(x509.BasicConstraints, Criticality.AGNOSTIC, _require_authority)
        .may_be_present(x509.KeyUsage, Criticality.AGNOSTIC, _require_certifying)
    )


def _require_authority(
    policy: Policy, certificate: x509.Certificate, constraints: x509.BasicConstraints
) -> None:
    if not constraints.ca:
        raise ValueError("an issuer is not an authority")


def _require_certifying(
    policy: Policy, certificate: x509.Certificate, usage: x509.KeyUsage | None
) -> None:
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("an issuer may not certify")
