"""`dist/<name>.intoto.json`: who made the release from what, for anybody who checks it.

An in-toto Statement v1 with a SLSA v1 provenance predicate, by the maintained bindings
(`in-toto-attestation`). Unsigned; a signer wraps it (design section 13). It says nothing of time,
host or user but who builds, and who signed the actions that were not carried out again, so it is
the same for the same release by the same builder from the same cache.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from epctx import lockfile as locks
from epctx.engine.output import materials
from epctx.errors import UsageError, VerificationError
from epctx.files.digest import Digest, of_bytes
from epctx.lockfile.types import Lock, LockedFile
from epctx.manifest import Manifest

if TYPE_CHECKING:
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor

PREDICATE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "pkg:pypi/epctx#build/v1"


def require() -> None:
    """Raises UsageError where in-toto's bindings are not installed."""
    UsageError.if_missing("in_toto_attestation", "attest")


def make(
    manifest: Manifest,
    lock: Lock,
    subjects: Mapping[str, LockedFile],
    builder: str,
    signers: Mapping[Digest, str] | None = None,
) -> bytes:
    """The attestation of a release.

    Args:
        manifest: what it was built from, as it was when it was parsed.
        lock: of the build.
        subjects: what was released, by name: paths from the output folder, with `/`.
        builder: who builds: a URI.
        signers: of the actions that were not carried out but taken from a cache, by key.

    Raises:
        ModelError: a source is gone, or is no longer the one that was built from.
        VerificationError: what was made breaks in-toto's or SLSA's schema (a bug).
    """
    # protobuf ships no types.
    from google.protobuf import json_format  # type: ignore[import-untyped]
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1.statement import Statement

    entry = _descriptor(manifest.path.name, {"sha256": manifest.sha256})
    version = lock.toolchain["epctx"]
    predicate = provenance_pb2.Provenance()
    definition = predicate.build_definition
    definition.build_type = BUILD_TYPE
    definition.external_parameters.update({"manifest": _plain(entry), "name": lock.name})
    definition.internal_parameters.update(_parameters(lock))
    if signers:
        definition.internal_parameters.update({"actions": _by_signer(signers)})
    found = materials.of_lock(lock, manifest.path.parent)
    listed = [entry, *(_descriptor(each.name, each.digests, each.uri) for each in found)]
    definition.resolved_dependencies.extend(each.pb for each in listed)
    predicate.run_details.builder.id = builder
    predicate.run_details.builder.version["epctx"] = version
    statement = Statement(
        [_descriptor(n, {"sha256": f.sha256}).pb for n, f in sorted(subjects.items())],
        PREDICATE,
        json_format.MessageToDict(predicate),
    )
    document = json_format.MessageToDict(statement.pb)
    content = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    check(content)
    return content


def said(content: bytes) -> tuple[str, dict[str, str]]:
    """Of a sound attestation: the SHA-256 of its lock, and of each subject, by name.

    Raises:
        VerificationError: as `check`, or it is none that epctx made.
    """
    check(content)
    document = json.loads(content)
    definition = document["predicate"]["buildDefinition"]
    try:
        if definition["buildType"] != BUILD_TYPE:
            raise KeyError(definition["buildType"])
        lock = str(definition["internalParameters"]["lock"]["sha256"])
        subjects = {each["name"]: str(each["digest"]["sha256"]) for each in document["subject"]}
    except (KeyError, TypeError) as error:
        raise VerificationError(
            "is no attestation of epctx's",
            why=f"it lacks {error}",
            remedy="hold it to its own builder's rules",
        ) from error
    if len(subjects) != len(document["subject"]):
        raise VerificationError(
            "names a subject twice", remedy="write it with `epctx build --attest`"
        )
    return lock, subjects


def difference(content: bytes, lock: Lock) -> str | None:
    """The part of an attestation that says anything else than its lock; None if none does.

    The lock knows nothing of the builder, the manifest's digest, the SHA-256 of sources and what
    wheels brought: these count for as much as whoever signs the attestation.

    Args:
        content: for which `said` raises nothing.
        lock: that it names.
    """
    document = json.loads(content)
    definition, details = (
        document["predicate"]["buildDefinition"],
        document["predicate"]["runDetails"],
    )
    external, internal = definition["externalParameters"], dict(definition["internalParameters"])
    internal.pop("actions", None)
    listed = definition["resolvedDependencies"]
    parts = materials.completed(lock, {each.get("uri") or each["name"]: each for each in listed})
    subjects = [
        {"name": each["name"], "digest": {"sha256": each["digest"]["sha256"]}}
        for each in document["subject"]
    ]
    manifest = external.get("manifest")
    pairs = {
        "externalParameters": (external, {"manifest": manifest, "name": lock.name}),
        "internalParameters": (internal, _parameters(lock)),
        "resolvedDependencies": (listed, [manifest, *parts]),
        "subject": (document["subject"], subjects),
        "version": (details["builder"].get("version"), {"epctx": lock.toolchain["epctx"]}),
    }
    return next((name for name, (found, expected) in pairs.items() if found != expected), None)


def _parameters(lock: Lock) -> dict[str, object]:
    """The internal parameters that a lock decides."""
    return {
        "lock": {"sha256": of_bytes(locks.built(lock), "sha256").hex},
        "toolchain": dict(lock.toolchain),
        "execution_providers": {
            name: {
                "code": each.code,
                "toolchain": dict(each.toolchain),
                "host": dict(each.host),
            }
            for name, each in lock.execution_providers.items()
        },
    }


def check(content: bytes) -> None:
    """Hold an attestation to the schemas of in-toto's Statement v1 and SLSA's provenance v1.

    Raises:
        VerificationError: it breaks one of them.
    """
    # protobuf ships no types.
    from google.protobuf import json_format
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
    from in_toto_attestation.v1.statement import Statement

    try:
        proto = json_format.Parse(content, statement_pb2.Statement())
        Statement.copy_from_pb(proto).validate()
        if proto.predicate_type != PREDICATE:
            raise ValueError(f"the predicate is {proto.predicate_type!r}")
        fields = json_format.MessageToDict(proto.predicate)
        predicate = json_format.ParseDict(fields, provenance_pb2.Provenance())
        definition, details = predicate.build_definition, predicate.run_details
        for material in definition.resolved_dependencies:
            ResourceDescriptor.copy_from_pb(material).validate()
        if not (definition.build_type and definition.external_parameters and details.builder.id):
            raise ValueError("buildType, externalParameters and builder.id are required")
    except (ValueError, json_format.ParseError) as error:
        raise VerificationError(
            "is no attestation with SLSA provenance",
            why=str(error),
            remedy="write it with `epctx build --attest`",
        ) from error


def _by_signer(signers: Mapping[Digest, str]) -> dict[str, list[str]]:
    """The keys of actions that each signer vouches for, by the names of their keys."""
    return {
        name: sorted(str(key) for key, signer in signers.items() if signer == name)
        for name in sorted(set(signers.values()))
    }


def _descriptor(name: str, digest: Mapping[str, str], uri: str = "") -> ResourceDescriptor:
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor

    return ResourceDescriptor(name=name, uri=uri, digest=dict(digest))


def _plain(descriptor: ResourceDescriptor) -> dict[str, object]:
    # protobuf ships no types.
    from google.protobuf import json_format

    plain: dict[str, object] = json_format.MessageToDict(descriptor.pb)
    return plain
