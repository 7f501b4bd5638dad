"""Keys and certificates that sign, made anew, and signatures as an attacker would write them."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from epctx.signing import dsse, oms
from epctx.signing.keys import Signer

DAY = datetime.timedelta(days=1)
Change = Callable[[dict[str, Any]], object]


def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def write_key(folder: Path, name: str, curve: ec.EllipticCurve | None = None) -> tuple[Path, Path]:
    """The files of a new private key and of its public one."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(pem(key))
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return private, public


@dataclass
class Certified:
    """A key with its certificate."""

    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def signer(self, *issuers: Certified) -> Signer:
        return Signer(key=self.key, chain=(self.certificate, *(i.certificate for i in issuers)))

    def write(self, folder: Path) -> tuple[Path, Path]:
        """The files of the key and of the certificate."""
        private, certificate = folder / f"{self.name}.pem", folder / f"{self.name}.crt"
        private.write_bytes(pem(self.key))
        certificate.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return private, certificate


def usage(*, signs: bool = False, certifies: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=certifies,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def certified(
    name: str,
    issuer: Certified | None = None,
    *,
    ca: bool | None = False,
    extensions: Sequence[x509.ExtensionType] = (),
    days: tuple[int, int] = (-1, 1),
    key: Any = None,
) -> Certified:
    """A new key with a certificate by `issuer`, or by itself.

    Args:
        ca: it may certify others; None: it does not say.
        days: from now, between which it holds.
    """
    key = key or ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer.name if issuer else name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + days[0] * DAY)
        .not_valid_after(now + days[1] * DAY)
    )
    if ca is not None:
        constraints = x509.BasicConstraints(ca=ca, path_length=None)
        builder = builder.add_extension(constraints, critical=True)
    for each in extensions:
        builder = builder.add_extension(each, critical=True)
    return Certified(name, key, builder.sign(issuer.key if issuer else key, hashes.SHA256()))


def root(name: str = "root") -> Certified:
    return certified(name, ca=True)


def leaf(issuer: Certified, name: str = "release", **settings: Any) -> Certified:
    return certified(name, issuer, **{"extensions": [usage(signs=True)]} | settings)


CODE_SIGNING = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
SERVER = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])


def changed(bundle: bytes, change: Change) -> bytes:
    """A bundle after a change that nobody signs."""
    document = json.loads(bundle)
    change(document)
    return json.dumps(document).encode()


def resigned(bundle: bytes, signer: Signer, change: Change) -> bytes:
    """A bundle whose statement was changed by somebody who has the key."""

    def resign(document: dict[str, Any]) -> None:
        envelope = document["dsseEnvelope"]
        statement = json.loads(base64.b64decode(envelope["payload"]))
        change(statement)
        payload = json.dumps(statement).encode()
        envelope["payload"] = base64.b64encode(payload).decode()
        signature = signer.sign(dsse.pae(oms.PAYLOAD_TYPE, payload))
        envelope["signatures"][0]["sig"] = base64.b64encode(signature).decode()

    return changed(bundle, resign)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
