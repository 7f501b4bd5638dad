"""Keys: those of OpenSSF Model Signing, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from epctx.errors import UsageError
from epctx.signing import keys
from epctx.signing.keys import Signer, Trusted
from tests.kit import signing

PUBLIC = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    "curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name
)
def test_a_signature_holds_for_its_key_and_its_bytes(
    tmp_path: Path, curve: ec.EllipticCurve
) -> None:
    private, public = signing.write_key(tmp_path, "k", curve)
    signer = Signer.load(private)
    trusted = Trusted.load([public], [])
    assert trusted is not None
    ((name, key),) = trusted.keys.items()
    signature = signer.sign(b"x")
    assert signature == signer.sign(b"x"), "it is always the same"
    assert keys.holds(key, signature, b"x")
    assert not keys.holds(key, signature, b"y") and not keys.holds(key, b"", b"x")
    assert signer.name == keys.key_name(name) == f"the key {name[:16]}…"


def test_who_signs_with_a_certificate_has_its_name(tmp_path: Path) -> None:
    root = signing.root()
    leaf = signing.leaf(root)
    (key, cert), (_, issuer) = leaf.write(tmp_path), root.write(tmp_path)
    signer = Signer.load(key, cert, issuer)
    assert signer.name == "CN=release" and len(signer.chain) == 2
    assert len(Signer.load(key, cert).chain) == 1


def private(key: Any, password: bytes | None = None) -> bytes:
    lock = serialization.NoEncryption()
    how = lock if password is None else serialization.BestAvailableEncryption(password)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    found: bytes = key.private_bytes(pem, form, how)
    return found


def elliptic() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


OTHERS: dict[str, Callable[[], bytes]] = {
    "Ed25519": lambda: private(ed25519.Ed25519PrivateKey.generate()),
    "RSA": lambda: private(rsa.generate_private_key(65537, 2048)),
    "another curve": lambda: private(ec.generate_private_key(ec.SECP256K1())),
    "with a password": lambda: private(elliptic(), b"secret"),
    "public": lambda: elliptic().public_key().public_bytes(*PUBLIC),
    "nothing": lambda: b"",
    "binary": lambda: bytes(range(256)),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_key_of_another_kind_signs_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "k.pem"
    path.write_bytes(OTHERS[kind]())
    what = (
        "cannot sign models" if kind in ("Ed25519", "RSA", "another curve") else "not a private key"
    )
    with pytest.raises(UsageError, match=what) as caught:
        Signer.load(path)
    assert "openssl genpkey" in caught.value.remedy


def test_a_public_key_must_be_one(tmp_path: Path) -> None:
    private, public = signing.write_key(tmp_path, "k")
    with pytest.raises(UsageError, match="is not a public key"):
        Trusted.load([private], [])
    with pytest.raises(UsageError, match="has no certificate"):
        Trusted.load([], [public])
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    public.write_bytes(other.public_bytes(*PUBLIC))
    with pytest.raises(UsageError, match="cannot sign models"):
        Trusted.load([public], [])
    with pytest.raises(UsageError, match="cannot be read"):
        Trusted.load([tmp_path], [])


def test_a_certificate_must_be_of_the_key(tmp_path: Path) -> None:
    root = signing.root()
    key, _ = signing.write_key(tmp_path, "k")
    _, cert = root.write(tmp_path)
    with pytest.raises(UsageError, match="is of another key"):
        Signer.load(key, cert)
    with pytest.raises(UsageError, match="is a chain without a certificate"):
        Signer.load(key, None, cert)


def test_where_nobody_is_named_nobody_is_trusted() -> None:
    assert Trusted.load([], []) is None


def test_a_certificate_is_of_a_key() -> None:
    assert keys.Signer.from_options(None, None, None) is None
    with pytest.raises(UsageError, match="without a signing key"):
        keys.Signer.from_options(None, "cert.pem", None)
