"""Certificates that say whose key signed, held to authorities that are trusted."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from epctx.signing import keys

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.verification import ExtensionPolicy, Policy

MOST: Final = 10
"""Certificates of one signature at most."""


class Unfit(Exception):
    """Certificates say nothing that counts; the text is one clause."""


def key_of(
    chain: Sequence[bytes], authorities: Sequence[x509.Certificate]
) -> tuple[ec.EllipticCurvePublicKey, str]:
    """The key of the first certificate, which an authority vouches for today, and whose it is.

    Args:
        chain: certificates in DER: the signer's own, then its issuers'.

    Raises:
        Unfit: the chain ends at nobody who is trusted, is expired, or is not for signatures.
    """
    from cryptography import x509
    from cryptography.x509 import verification

    if not 0 < len(chain) <= MOST:
        raise Unfit(f"has {len(chain)} certificates, not 1 to {MOST}")
    try:
        leaf, *others = (x509.load_der_x509_certificate(each) for each in chain)
        policy = verification.PolicyBuilder().time(datetime.datetime.now(datetime.UTC))
        policy = policy.store(verification.Store(list(authorities)))
        policy = policy.extension_policies(
            ca_policy=_issuer(), ee_policy=verification.ExtensionPolicy.permit_all()
        )
        policy.build_client_verifier().verify(leaf, others)
        _refuse_other_use(leaf)
        public = leaf.public_key()
    except verification.VerificationError as error:
        why = str(error).rpartition("exhausted: ")[2]
        told = "no issuer of it is" if "no interior errors" in why else why
        raise Unfit(f"is certified by nobody who is trusted today: {told}") from error
    except (ValueError, TypeError, x509.DuplicateExtension) as error:
        raise Unfit(f"has a certificate that is none: {error}") from error
    if not keys.is_curve(public):
        raise Unfit("has a certificate of a key of another kind")
    return public, leaf.subject.rfc4514_string()


def _refuse_other_use(leaf: x509.Certificate) -> None:
    """A certificate says what it is for: signatures, of code where it says more than that.

    Raises:
        Unfit: it is for something else, or does not say.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    found = {type(each.value): each.value for each in leaf.extensions}
    usage = cast("x509.KeyUsage | None", found.get(x509.KeyUsage))
    extended = cast("x509.ExtendedKeyUsage | None", found.get(x509.ExtendedKeyUsage))
    signs = usage is None or usage.digital_signature
    of_code = extended is None or ExtendedKeyUsageOID.CODE_SIGNING in extended
    if not (signs and of_code) or (usage is None and extended is None):
        raise Unfit("has a certificate that is not for signatures")


def _issuer() -> ExtensionPolicy:
    """As RFC 5280 has it: an issuer is an authority, and where it says what its key is for, this.

    The web's own rules ask for more, which `openssl req -x509` does not write.
    """
    from cryptography import x509
    from cryptography.x509.verification import Criticality, ExtensionPolicy

    return (
        ExtensionPolicy.permit_all()
        .require_present(x509.BasicConstraints, Criticality.AGNOSTIC, _is_authority)
        .may_be_present(x509.KeyUsage, Criticality.AGNOSTIC, _certifies)
    )


def _is_authority(
    policy: Policy, certificate: x509.Certificate, constraints: x509.BasicConstraints
) -> None:
    if not constraints.ca:
        raise ValueError("an issuer is no authority")


def _certifies(policy: Policy, certificate: x509.Certificate, usage: x509.KeyUsage | None) -> None:
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("an issuer may not certify")
