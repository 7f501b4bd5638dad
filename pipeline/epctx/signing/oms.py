"""OpenSSF Model Signing v1.0: a folder's files and their SHA-256, signed in a Sigstore bundle.

The bundle has a DSSE envelope, the envelope an in-toto statement, the statement the files. The same
key and folder give the same bytes each time.
https://github.com/ossf/model-signing-spec
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from epctx import codec
from epctx.files import digest, hashing, paths
from epctx.files.digest import Digest
from epctx.files.entries import open_entry
from epctx.files.outputs import SIGNATURE
from epctx.signing import dsse, keys
from epctx.signing.keys import Refused, Signer, Trusted

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

MEDIA_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://model_signing/signature/v1.0"
IGNORED: Final = (".git", ".gitattributes", ".github", ".gitignore")
"""Names at the top of a folder that are never signed."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class _PublicKey(Struct, frozen=True):
    hint: str | None = None


class _Certificate(Struct, frozen=True):
    rawBytes: str


class _Chain(Struct, frozen=True):
    certificates: tuple[_Certificate, ...]


class _Material(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    public_key: _PublicKey | None = None
    x509_certificate_chain: _Chain | None = None
    certificate: msgspec.Raw | None = None


class _Bundle(Struct, frozen=True, kw_only=True, rename="camel"):
    media_type: str
    verification_material: _Material
    dsse_envelope: dsse.Envelope


class _Subject(Struct, frozen=True, kw_only=True):
    name: str
    digest: Mapping[str, str]


class _Resource(Struct, frozen=True, kw_only=True):
    name: str
    algorithm: str
    digest: str


class _Serialization(Struct, frozen=True, kw_only=True):
    method: str
    hash_type: str
    allow_symlinks: bool
    ignore_paths: tuple[str, ...] = ()


class _Predicate(Struct, frozen=True, kw_only=True):
    serialization: _Serialization
    resources: tuple[_Resource, ...]


class _Statement(Struct, frozen=True, kw_only=True, rename={"kind": "_type"}):
    kind: str
    subject: tuple[_Subject, ...]
    predicateType: str
    predicate: _Predicate


def sign(signer: Signer, name: str, files: Mapping[str, str]) -> bytes:
    """Sign the files of a folder, and return the bundle.

    Args:
        name: name of the folder.
        files: SHA-256 of each file as hex, by its path in the folder, with `/`; at least one.
    """
    resources = tuple(
        _Resource(name=each, algorithm="sha256", digest=files[each]) for each in sorted(files)
    )
    statement = _Statement(
        kind=STATEMENT,
        subject=(_Subject(name=name, digest={"sha256": _root(resources)}),),
        predicateType=PREDICATE,
        predicate=_Predicate(
            serialization=_Serialization(
                method="files",
                hash_type="sha256",
                allow_symlinks=False,
                ignore_paths=(*IGNORED, SIGNATURE),
            ),
            resources=resources,
        ),
    )
    content = codec.encode(statement)
    signature = signer.sign(dsse.pae(PAYLOAD_TYPE, content))
    bundle = _Bundle(
        media_type=MEDIA_TYPE,
        verification_material=_material(signer),
        dsse_envelope=dsse.Envelope.of(
            PAYLOAD_TYPE, content, [dsse.Signature(sig=dsse.encoded(signature), keyid="")]
        ),
    )
    return codec.encode(bundle, indent=2) + b"\n"


def verify(content: bytes, trusted: Trusted) -> tuple[str, dict[str, str]]:
    """Verify a bundle; return the signer's name, and the files as `sign` takes them.

    Raises:
        Refused: the content is not a bundle, no trusted key signed it, or it contradicts itself.
    """
    bundle, payload = _parse(content)
    try:
        signature = dsse.decoded(bundle.dsse_envelope.signatures[0].sig)
        key, signer = _key(bundle.verification_material, trusted)
    except ValueError as error:
        raise Refused("is not a Sigstore bundle: it has invalid base64") from error
    if not keys.holds(key, signature, dsse.pae(PAYLOAD_TYPE, payload)):
        raise Refused(f"is not by {signer}, or was changed since")
    return signer, _files(payload)


def unverified_files(content: bytes) -> dict[str, str]:
    """Return the files that a bundle names, without verifying its signature. Raises Refused."""
    return _files(_parse(content)[1])


def folder_digests(folder: Path) -> dict[str, Digest | str]:
    """Hash every file of a folder that a signature has to name.

    Returns:
        The SHA-256 by path, with `/`; or the reason why a file, such as a link, cannot be signed.

    Raises:
        OSError: a folder cannot be read.
    """
    unsigned = {SIGNATURE, *IGNORED}
    names = [
        name
        for name in paths.entries(folder)
        if not name.endswith("/") and name.split("/", 1)[0] not in unsigned
    ]
    return hashing.of_each(lambda name: _hash(folder, name), names)


def differences(
    signed: Mapping[str, str], present: Mapping[str, Digest | str]
) -> Iterator[tuple[str, str]]:
    """Compare a folder with its signature; yield each file that differs, and how."""
    for name in sorted({*signed, *present}):
        digest = present.get(name)
        if digest is None:
            yield name, "is missing, but was signed"
        elif isinstance(digest, str):
            yield name, digest
        elif name not in signed:
            yield name, "is not signed"
        elif digest.hex != signed[name]:
            yield name, "was changed since it was signed"


def _hash(folder: Path, name: str) -> Digest | str:
    if (fault := paths.objection(name)) is not None:
        return f"cannot be signed: {fault}"
    try:
        with open_entry(folder / name) as stream:
            return digest.of_stream(stream, "sha256")
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def _parse(content: bytes) -> tuple[_Bundle, bytes]:
    try:
        bundle = codec.decode(content, _Bundle)
        payload = dsse.decoded(bundle.dsse_envelope.payload)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Refused(f"is not a Sigstore bundle: {error}") from error
    envelope = bundle.dsse_envelope
    if bundle.media_type != MEDIA_TYPE:
        raise Refused(f"has another media type, {bundle.media_type!r}")
    if envelope.payload_type != PAYLOAD_TYPE:
        raise Refused(f"has a payload of another type, {envelope.payload_type!r}")
    if len(envelope.signatures) != 1:
        raise Refused(f"has {len(envelope.signatures)} signatures, not one")
    return bundle, payload


def _material(signer: Signer) -> _Material:
    if signer.chain:
        from cryptography.hazmat.primitives.serialization import Encoding

        ders = (each.public_bytes(Encoding.DER) for each in signer.chain)
        chain = tuple(_Certificate(dsse.encoded(each)) for each in ders)
        return _Material(x509_certificate_chain=_Chain(chain))
    return _Material(public_key=_PublicKey(keys.fingerprint(signer.key.public_key())))


def _key(material: _Material, trusted: Trusted) -> tuple[ec.EllipticCurvePublicKey, str]:
    """Return the trusted key that a bundle names, and the signer's name.

    Raises:
        Refused: the bundle names no trusted key.
        ValueError: a certificate is not base64.
    """
    kinds = (material.public_key, material.x509_certificate_chain, material.certificate)
    if sum(each is not None for each in kinds) != 1:
        raise Refused("does not name exactly one key or certificate of its signer")
    if material.public_key is not None:
        return _trusted_key(material.public_key.hint, trusted)
    if material.x509_certificate_chain is None:
        raise Refused("is signed without a key (Sigstore): verify it with `model_signing`")
    if not trusted.authorities:
        raise Refused("is signed with a certificate, and no authority is trusted (--trusted-ca)")
    chain = material.x509_certificate_chain.certificates
    return trusted.certified_key([dsse.decoded(each.rawBytes) for each in chain])


def _trusted_key(hint: str | None, trusted: Trusted) -> tuple[ec.EllipticCurvePublicKey, str]:
    if not trusted.keys:
        raise Refused("is signed with a key, and only authorities are trusted (--trusted-key)")
    if hint is None and len(trusted.keys) == 1:  # as model-signing before 1.1 writes it
        ((hint, key),) = trusted.keys.items()
        return key, keys.key_name(hint)
    if hint is None or hint not in trusted.keys:
        raise Refused(f"is by {keys.key_name(hint or '?')}, which is not trusted")
    return trusted.keys[hint], keys.key_name(hint)


def _files(payload: bytes) -> dict[str, str]:
    try:
        statement = codec.decode(payload, _Statement)
    except msgspec.MsgspecError as error:
        raise Refused(f"signs no statement about a model: {error}") from error
    if (statement.kind, statement.predicateType) != (STATEMENT, PREDICATE):
        raise Refused(f"signs a statement of another type, {statement.predicateType!r}")
    form, resources = statement.predicate.serialization, statement.predicate.resources
    if (form.method, form.hash_type) != ("files", "sha256"):
        raise Refused(f"signs {form.method} by {form.hash_type}; epctx verifies files by SHA-256")
    files = {each.name: each.digest for each in resources}
    if not files or len(files) < len(resources):
        raise Refused("signs no file, or one twice")
    for each in resources:
        if each.algorithm != "sha256" or not _SHA256.fullmatch(each.digest):
            raise Refused(f"has no SHA-256 of {each.name!r}")
        if paths.objection(each.name) or paths.normalize(each.name) != each.name:
            raise Refused(f"signs {each.name!r}, which is not a path inside the folder")
    if [each.digest.get("sha256") for each in statement.subject] != [_root(resources)]:
        raise Refused("contradicts itself: its digest is not that of its files")
    return files


def _root(resources: tuple[_Resource, ...]) -> str:
    return hashlib.sha256(b"".join(bytes.fromhex(each.digest) for each in resources)).hexdigest()
