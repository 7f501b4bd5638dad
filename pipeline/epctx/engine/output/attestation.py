"""`dist/<name>.intoto.json`: who made the release from what, for anybody who checks it.

An in-toto Statement v1 with a SLSA v1 provenance predicate, by the maintained bindings
(`in-toto-attestation`). Unsigned; a signer wraps it (design section 13). It says nothing of time,
host or user, so it is the same for the same release.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from epctx import lockfile as locks
from epctx.errors import ModelError, VerificationError
from epctx.files import hashing
from epctx.files.digest import HashingWriter, of_bytes
from epctx.files.outputs import OutputFile
from epctx.lockfile.types import Lock, LockedSource

if TYPE_CHECKING:
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor

PREDICATE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "pkg:pypi/epctx#build/v1"
_CHUNK = 1 << 20


def make(manifest: Path, lock: Lock, subjects: Mapping[str, OutputFile]) -> bytes:
    """The attestation of a release.

    Args:
        manifest: what it was built from.
        lock: of the build.
        subjects: what was released, by name: paths from the output folder, with `/`.

    Raises:
        ModelError: a source is gone, or is no longer the one that was built from.
        VerificationError: what was made breaks in-toto's or SLSA's schema (a bug).
    """
    # protobuf ships no types.
    from google.protobuf import json_format  # type: ignore[import-untyped]
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1.statement import Statement

    text = manifest.read_bytes()
    entry = _descriptor(manifest.name, {"sha256": of_bytes(text, "sha256").hex})
    written = locks.text(lock).encode()
    version = lock.toolchain["epctx"]
    predicate = provenance_pb2.Provenance()
    definition = predicate.build_definition
    definition.build_type = BUILD_TYPE
    definition.external_parameters.update({"manifest": _plain(entry), "name": lock.name})
    definition.internal_parameters.update(
        {
            "lock": {"sha256": of_bytes(written, "sha256").hex},
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
    )
    materials = [entry, *_sources(manifest.parent, lock.sources), *_packages(lock.toolchain)]
    definition.resolved_dependencies.extend(each.pb for each in materials)
    predicate.run_details.builder.id = f"pkg:pypi/epctx@{version}"
    predicate.run_details.builder.version["epctx"] = version
    statement = Statement(
        [_descriptor(n, {"sha256": f.sha256.hex}).pb for n, f in sorted(subjects.items())],
        PREDICATE,
        json_format.MessageToDict(predicate),
    )
    document = json_format.MessageToDict(statement.pb)
    content = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    check(content)
    return content


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


def _descriptor(name: str, digest: Mapping[str, str], uri: str = "") -> ResourceDescriptor:
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor

    return ResourceDescriptor(name=name, uri=uri, digest=dict(digest))


def _plain(descriptor: ResourceDescriptor) -> dict[str, object]:
    # protobuf ships no types.
    from google.protobuf import json_format

    plain: dict[str, object] = json_format.MessageToDict(descriptor.pb)
    return plain


def _packages(toolchain: Mapping[str, str]) -> Iterator[ResourceDescriptor]:
    """The distributions that made the bytes; beside them are digests of epctx's own sources."""
    for name, version in sorted(toolchain.items()):
        if "/" not in name:
            distribution, _, own = version.rpartition(" ")
            yield _descriptor(name, {}, uri=f"pkg:pypi/{distribution or name}@{own}")


def _sources(folder: Path, sources: Mapping[str, LockedSource]) -> Iterable[ResourceDescriptor]:
    found = hashing.of_each(lambda name: _source(folder, name, sources[name]), sorted(sources))
    return found.values()


def _source(folder: Path, name: str, source: LockedSource) -> ResourceDescriptor:
    """A source with its SHA-256, which nothing else needed, and its BLAKE3, which it is held to."""
    path = folder / name
    blake3 = source.digest.partition(":")[2]
    with (
        ModelError.if_refused(
            "cannot be read for the attestation",
            file=str(path),
            remedy="build again while nothing changes the sources",
        ),
        path.open("rb") as stream,
        Path(os.devnull).open("wb") as sink,
    ):
        writer = HashingWriter(sink)
        while chunk := stream.read(_CHUNK):
            writer.write(chunk)
    if writer.blake3.hex != blake3:
        raise ModelError(
            "was changed while it was built from",
            file=str(path),
            remedy="build again while nothing changes the sources",
        )
    return _descriptor(name, {"blake3": blake3, "sha256": writer.sha256.hex})
