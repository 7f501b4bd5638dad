"""Chains of certificates: which may say whose a key is, and which may not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from epctx.signing.keys import Refused, Trusted
from tests.kit.signing import CODE_SIGNING, SERVER, Certified, certified, leaf, root, usage

Chain = Sequence[Certified]


def key_of(chain: Chain, trusted: Certified) -> str:
    der = [each.certificate.public_bytes(serialization.Encoding.DER) for each in chain]
    return Trusted(keys={}, authorities=(trusted.certificate,)).certified_key(der)[1]


ROOT = root()
GOOD: dict[str, Callable[[], Chain]] = {
    "by the authority itself": lambda: [leaf(ROOT)],
    "with the authority in the chain": lambda: [leaf(ROOT), ROOT],
    "by an authority of the authority": lambda: (lambda between: [leaf(between), between])(
        certified("between", ROOT, ca=True, extensions=[usage(certifies=True)])
    ),
    "for signatures of code": lambda: [leaf(ROOT, extensions=[usage(signs=True), CODE_SIGNING])],
    "for code, and no word of keys": lambda: [leaf(ROOT, extensions=[CODE_SIGNING])],
}


@pytest.mark.parametrize("case", GOOD)
def test_a_chain_that_ends_at_a_trusted_authority_names_the_signer(case: str) -> None:
    assert key_of(GOOD[case](), ROOT) == "CN=release"


def between(**settings: Any) -> Chain:
    middle = certified("between", ROOT, **settings)
    return [leaf(middle), middle]


BAD: dict[str, tuple[Callable[[], Chain], str]] = {
    "another authority of that name": (
        lambda: [leaf(root())],
        "not certified by a trusted authority",
    ),
    "its authority is in the chain alone": (
        lambda: (lambda other: [leaf(other), other])(root("other")),
        "not certified by a trusted authority",
    ),
    "by itself": (lambda: [certified("x", extensions=[usage(signs=True)])], "not certified by"),
    "expired": (lambda: [leaf(ROOT, days=(-3, -1))], "a trusted authority today"),
    "not yet": (lambda: [leaf(ROOT, days=(1, 3))], "a trusted authority today"),
    "its issuer is expired": (
        lambda: between(ca=True, days=(-3, -1)),
        "not certified by a trusted authority",
    ),
    "its issuer is none": (lambda: between(ca=False), "not certified by a trusted authority"),
    "its issuer does not say": (lambda: between(ca=None), "not certified by a trusted authority"),
    "its issuer may not certify": (
        lambda: between(ca=True, extensions=[usage(signs=True)]),
        "not certified by a trusted authority",
    ),
    "its issuer is left out": (
        lambda: between(ca=True)[:1],
        "not certified by a trusted authority",
    ),
    "not for signatures": (
        lambda: [leaf(ROOT, extensions=[usage(certifies=True)])],
        "not for signatures",
    ),
    "for a server": (
        lambda: [leaf(ROOT, extensions=[usage(signs=True), SERVER])],
        "not for signatures",
    ),
    "for nothing": (lambda: [leaf(ROOT, extensions=[])], "not for signatures"),
    "none": (list, "has 0 certificates"),
    "eleven": (lambda: [leaf(ROOT)] * 11, "has 11 certificates"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_chain_that_says_nothing_that_counts(case: str) -> None:
    chain, words = BAD[case]
    with pytest.raises(Refused, match=words):
        key_of(chain(), ROOT)


def test_a_certificate_that_is_trusted_itself_certifies_nobody_else() -> None:
    own = leaf(ROOT)
    for chain in ([leaf(own, "other")], [leaf(own, "other"), own]):
        with pytest.raises(Refused, match="not certified by a trusted authority"):
            key_of(chain, own)


def test_what_is_no_certificate() -> None:
    with pytest.raises(Refused, match="has an invalid certificate"):
        Trusted(keys={}, authorities=(ROOT.certificate,)).certified_key([b"x"])


def test_a_key_of_another_kind() -> None:
    key = rsa.generate_private_key(65537, 2048)
    made = certified("release", ROOT, extensions=[usage(signs=True)], key=key)
    with pytest.raises(Refused, match="an unsupported kind of key"):
        key_of([made], ROOT)


def test_an_authority_limits_whom_it_certifies() -> None:
    """A path of length 0 has no authority below it."""
    short = x509.BasicConstraints(ca=True, path_length=0)
    middle = certified("between", ROOT, ca=None, extensions=[short])
    lower = certified("lower", middle, ca=True)
    assert key_of([leaf(middle), middle], ROOT)
    with pytest.raises(Refused, match="not certified by a trusted authority"):
        key_of([leaf(lower), lower, middle], ROOT)
