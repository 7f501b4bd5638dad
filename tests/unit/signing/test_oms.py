"""Bundles of OpenSSF Model Signing: written one way, and read without belief."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epctx.signing import oms
from epctx.signing.keys import Refused, Signer, Trusted
from tests.kit import signing
from tests.kit.signing import Certified, Change, leaf, root

FILES = {"b/c.bin": "00" * 32, "a.onnx": "11" * 32, "b-c": "22" * 32}
Pair = tuple[Signer, Trusted]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    private, public = signing.write_key(tmp_path_factory.mktemp("keys"), "k")
    trusted = Trusted.load([public], [])
    assert trusted is not None
    return Signer.load(private), trusted


@pytest.fixture(scope="module")
def authority() -> Certified:
    return root()


def trusting(authority: Certified) -> Trusted:
    return Trusted(keys={}, authorities=(authority.certificate,))


def test_what_is_signed_is_what_is_read(pair: Pair) -> None:
    signer, trusted = pair
    bundle = oms.sign(signer, "m", FILES)
    assert bundle == oms.sign(signer, "m", FILES), "it is always the same"
    assert oms.verify(bundle, trusted) == (signer.name, FILES)
    assert oms.unverified_files(bundle) == FILES


def test_the_statement_is_as_the_specification_has_it(pair: Pair) -> None:
    document = json.loads(oms.sign(pair[0], "m", FILES))
    statement = json.loads(base64.b64decode(document["dsseEnvelope"]["payload"]))
    assert set(document) == {"mediaType", "verificationMaterial", "dsseEnvelope"}
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://model_signing/signature/v1.0"
    names = [each["name"] for each in statement["predicate"]["resources"]]
    assert names == ["a.onnx", "b-c", "b/c.bin"], "by code points, not part by part"
    (subject,) = statement["subject"]
    assert subject["name"] == "m" and len(subject["digest"]["sha256"]) == 64


def test_a_certificate_says_who_signed(authority: Certified) -> None:
    bundle = oms.sign(leaf(authority).signer(), "m", FILES)
    assert oms.verify(bundle, trusting(authority)) == ("CN=release", FILES)
    between = signing.certified("between", authority, ca=True)
    bundle = oms.sign(leaf(between).signer(between), "m", FILES)
    assert oms.verify(bundle, trusting(authority)) == ("CN=release", FILES)


def test_an_older_bundle_has_no_hint(pair: Pair) -> None:
    """As model-signing before 1.1 writes it: the one key that is trusted is tried."""
    material = {"publicKey": {"rawBytes": "AAAA", "keyDetails": "PKIX_ECDSA_P256_SHA_256"}}
    bundle = signing.changed(
        oms.sign(pair[0], "m", FILES), lambda b: b.update(verificationMaterial=material)
    )
    assert oms.verify(bundle, pair[1])[1] == FILES


def envelope(**values: object) -> Change:
    return lambda document: document["dsseEnvelope"].update(values)


def material(**values: object) -> Change:
    return lambda document: document.update(verificationMaterial=values)


def twice(document: dict[str, Any]) -> None:
    document["dsseEnvelope"]["signatures"] *= 2


def flipped(document: dict[str, Any]) -> None:
    """One letter of the payload."""
    envelope = document["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"]).replace(b'"a.onnx"', b'"z.onnx"')
    envelope["payload"] = base64.b64encode(payload).decode()


UNSIGNED: dict[str, tuple[Change, str]] = {
    "another name in the statement": (flipped, "or was changed since"),
    "another payload type": (envelope(payloadType="application/json"), "another type"),
    "two signatures": (twice, "has 2 signatures"),
    "no signature": (envelope(signatures=[]), "has 0 signatures"),
    "no base64": (envelope(signatures=[{"sig": "?"}]), "invalid base64"),
    "a signature of nothing": (envelope(signatures=[{"sig": ""}]), "or was changed since"),
    "another kind of bundle": (lambda b: b.update(mediaType="x"), "another media type"),
    "no payload": (envelope(payload=None), "is not a Sigstore bundle"),
    "no key": (material(), "does not name exactly one key"),
    "a key and a certificate": (
        material(publicKey={"hint": "x"}, x509CertificateChain={"certificates": []}),
        "does not name exactly one key",
    ),
    "a key that nobody trusts": (material(publicKey={"hint": "ab" * 32}), "is not trusted"),
    "a certificate for a key": (
        material(x509CertificateChain={"certificates": [{"rawBytes": "AAAA"}]}),
        "no authority is trusted",
    ),
    "without a key": (material(certificate={"rawBytes": "AAAA"}), "Sigstore"),
}


@pytest.mark.parametrize("attack", UNSIGNED)
def test_what_nobody_signed_does_not_count(pair: Pair, attack: str) -> None:
    change, words = UNSIGNED[attack]
    with pytest.raises(Refused, match=words):
        oms.verify(signing.changed(oms.sign(pair[0], "m", FILES), change), pair[1])


@pytest.mark.parametrize("content", [b"", b"x", b"[]", b"{}", b"[" * 100_000, b"\xff"])
def test_what_is_no_bundle(pair: Pair, content: bytes) -> None:
    for read in (lambda: oms.verify(content, pair[1]), lambda: oms.unverified_files(content)):
        with pytest.raises(Refused, match="is not a Sigstore bundle"):
            read()


def resource(**values: object) -> Change:
    return lambda statement: statement["predicate"]["resources"][0].update(values)


def serialization(**values: object) -> Change:
    return lambda statement: statement["predicate"]["serialization"].update(values)


def resources(change: Callable[[list[Any]], object]) -> Change:
    return lambda statement: change(statement["predicate"]["resources"])


SIGNED: dict[str, tuple[Change, str]] = {
    "another type of statement": (lambda s: s.update(_type="x"), "statement of another type"),
    "another predicate": (
        lambda s: s.update(predicateType="https://slsa.dev/provenance/v1"),
        "statement of another type",
    ),
    "the predicate of old": (
        lambda s: s.update(predicateType="https://model_signing/Digests/v0.1"),
        "statement of another type",
    ),
    "shards": (serialization(method="shards"), "signs shards"),
    "another hash": (serialization(hash_type="md5"), "by md5"),
    "another hash of one file": (resource(algorithm="blake2b"), "has no SHA-256"),
    "no hash": (resource(digest="00"), "has no SHA-256"),
    "a hash in capitals": (resource(digest="AA" * 32), "has no SHA-256"),
    "absolute": (resource(name="/etc/passwd"), "not a path inside"),
    "up": (resource(name="../a.onnx"), "not a path inside"),
    "up within": (resource(name="b/../a.onnx"), "not a path inside"),
    "of Windows": (resource(name="C:a.onnx"), "not a path inside"),
    "with a backslash": (resource(name="b\\a"), "not a path inside"),
    "another spelling": (resource(name="./a.onnx"), "not a path inside"),
    "a folder": (resource(name="b/"), "not a path inside"),
    "a file twice": (resources(lambda r: r.append(r[0])), "one twice"),
    "no file": (resources(lambda r: r.clear()), "signs no file"),
    "a file left out": (resources(lambda r: r.pop()), "contradicts itself"),
    "another order": (resources(lambda r: r.reverse()), "contradicts itself"),
    "two subjects": (lambda s: s.update(subject=s["subject"] * 2), "contradicts itself"),
    "no subject": (lambda s: s.update(subject=[]), "contradicts itself"),
    "no predicate": (lambda s: s.pop("predicate"), "no statement about a model"),
}


@pytest.mark.parametrize("attack", SIGNED)
def test_a_signature_of_what_cannot_be_does_not_count(pair: Pair, attack: str) -> None:
    change, words = SIGNED[attack]
    signer, trusted = pair
    bundle = oms.sign(signer, "m", FILES)
    assert oms.verify(signing.resigned(bundle, signer, lambda s: None), trusted)
    with pytest.raises(Refused, match=words):
        oms.verify(signing.resigned(bundle, signer, change), trusted)


def test_a_key_is_no_authority_and_an_authority_no_key(pair: Pair, authority: Certified) -> None:
    signed = oms.sign(leaf(authority).signer(), "m", FILES)
    with pytest.raises(Refused, match="no authority is trusted"):
        oms.verify(signed, pair[1])
    with pytest.raises(Refused, match="only authorities are trusted"):
        oms.verify(oms.sign(pair[0], "m", FILES), trusting(authority))


def test_another_chain_beside_a_signature_does_not_count(authority: Certified) -> None:
    """A certificate of somebody who is trusted, beside a signature by somebody who is not."""
    own, other = leaf(authority), leaf(root("other"), "other")
    theirs = json.loads(oms.sign(own.signer(), "m", FILES))["verificationMaterial"]
    bundle = oms.sign(other.signer(), "m", FILES)
    with pytest.raises(Refused, match="not certified by a trusted authority"):
        oms.verify(bundle, trusting(authority))
    with pytest.raises(Refused, match="is not by CN=release"):
        oms.verify(signing.changed(bundle, material(**theirs)), trusting(authority))


def test_a_chain_that_is_no_base64(authority: Certified) -> None:
    bundle = signing.changed(
        oms.sign(leaf(authority).signer(), "m", FILES),
        material(x509CertificateChain={"certificates": [{"rawBytes": "?"}]}),
    )
    with pytest.raises(Refused, match="invalid base64"):
        oms.verify(bundle, trusting(authority))


VECTORS = Path(__file__).parent / "vectors"


def test_what_the_specification_signed_is_read() -> None:
    """`key.bundle.json` of ossf/model-signing-spec, whose key it does not publish."""
    files = oms.unverified_files((VECTORS / "key.bundle.json").read_bytes())
    assert set(files) == {"signme-1", "signme-2"}
