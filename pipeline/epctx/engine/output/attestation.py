"""`dist/<name>.intoto.json`: names the builder and the sources of a release.

An in-toto Statement v1 with a SLSA v1 provenance predicate, made with the maintained bindings
(`in-toto-attestation`). It is unsigned; a signer wraps it (design section 13). It contains no time,
host or user, only the builder and the signers of cached actions. So it is the same for the same
release by the same builder from the same cache.

Materials are the sources, Python packages and EP libraries, with their known digests. The digest of
an installed package is in-toto's `dirHash`: the SHA-256 of the lines that `sha256sum` prints for
the files of its wheel. The wheel itself is gone after an installation; a package that is installed
from a folder has no wheel and no `dirHash`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from epctx import lockfile as locks
from epctx.errors import ModelError, UsageError, VerificationError
from epctx.files import digest, hashing
from epctx.files.digest import Digest, HashingWriter, of_bytes
from epctx.lockfile.types import Lock, LockedFile, LockedSource
from epctx.manifest import Manifest
from epctx.oci import artifact
from epctx.oci.artifact import Blob

if TYPE_CHECKING:
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor

PREDICATE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "pkg:pypi/epctx#build/v1"


def require() -> None:
    """Raise UsageError if in-toto's bindings are not installed."""
    UsageError.if_missing("in_toto_attestation", "attest")


def make(
    manifest: Manifest,
    lock: Lock,
    subjects: Mapping[str, LockedFile],
    builder: str,
    signers: Mapping[Digest, str] | None = None,
) -> bytes:
    """Make the attestation of a release.

    Args:
        manifest: the parsed manifest of the build.
        lock: the lock of the build.
        subjects: released files, by path from the output folder, with `/`.
        builder: URI of the builder.
        signers: signers of cached actions, by key.

    Raises:
        ModelError: a source is missing, or was changed since the build.
        VerificationError: the attestation breaks in-toto's or SLSA's schema (a bug).
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
    materials_of_lock = materials(lock, manifest.path.parent)
    listed = [
        entry,
        *(_descriptor(each.name, each.digests, each.uri) for each in materials_of_lock),
    ]
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


def lock_and_subjects(content: bytes) -> tuple[str, dict[str, str]]:
    """Return the SHA-256 of the lock of a valid attestation, and of each subject by name.

    Raises:
        VerificationError: as `check`; or epctx did not make it.
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
            "is not an attestation by epctx",
            why=f"it lacks {error}",
            remedy="check it against the rules of its own builder",
        ) from error
    if len(subjects) != len(document["subject"]):
        raise VerificationError(
            "names a subject twice", remedy="write it with `epctx build --attest`"
        )
    return lock, subjects


def difference(content: bytes, lock: Lock) -> str | None:
    """Return the name of the first part of an attestation that differs from its lock; None if none
    does.

    The lock lacks the builder, the digest of the manifest, the SHA-256 of sources and the files of
    wheels: only the signer of the attestation vouches for them.

    Args:
        content: an attestation for which `lock_and_subjects` raises nothing.
        lock: the lock that it names.
    """
    document = json.loads(content)
    definition, details = (
        document["predicate"]["buildDefinition"],
        document["predicate"]["runDetails"],
    )
    external, internal = definition["externalParameters"], dict(definition["internalParameters"])
    internal.pop("actions", None)
    listed = definition["resolvedDependencies"]
    parts = completed(lock, {each.get("uri") or each["name"]: each for each in listed})
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
    return next((name for name, (actual, expected) in pairs.items() if actual != expected), None)


def _parameters(lock: Lock) -> dict[str, object]:
    """Return the internal parameters that follow from a lock."""
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
    """Check an attestation against the schemas of in-toto's Statement v1 and SLSA's provenance v1.

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
            "is not an attestation with SLSA provenance",
            why=str(error),
            remedy="write it with `epctx build --attest`",
        ) from error


def _by_signer(signers: Mapping[Digest, str]) -> dict[str, list[str]]:
    """Return the keys of the actions that each signer vouches for, by signer."""
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


_CHUNK = 1 << 20
_OF_INSTALLERS = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""Files beside a package that its installer writes, not its wheel."""


class Material(Struct, frozen=True, kw_only=True):
    """An input of the build; `digests` in hex, by in-toto's names of algorithms."""

    name: str
    uri: str = ""
    digests: dict[str, str] = field(default_factory=dict)


def materials(lock: Lock, folder: Path) -> list[Material]:
    """Return the materials of a lock, sources first.

    Args:
        folder: folder of the manifest.

    Raises:
        ModelError: a source is missing, or was changed since the build.
    """
    names = sorted(lock.sources)
    sources = hashing.of_each(lambda name: _source(folder, name, lock.sources[name]), names)
    packages = dict(_packages(lock, _is_installed))
    distributions = [_package(name, version) for name, version in sorted(packages.items())]
    libraries = {each.name: each for each in _libraries(lock)}
    return [*sources.values(), *distributions, *(libraries[name] for name in sorted(libraries))]


def completed(lock: Lock, listed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return descriptors of the materials of a lock; digests that no lock has are taken from
    `listed`.

    Args:
        listed: descriptors of an attestation, by URI; by name if they have no URI.
    """
    descriptors = [
        _described(name, "", listed, "sha256", blake3=source.digest.partition(":")[2])
        for name, source in sorted(lock.sources.items())
    ]
    packages = dict(_packages(lock, lambda name, version: _uri(name, version) in listed))
    descriptors += [
        _described(name, _uri(name, version), listed, "dirHash")
        for name, version in sorted(packages.items())
    ]
    libraries = {each.name: each for each in _libraries(lock)}
    return descriptors + [{"name": n, "digest": libraries[n].digests} for n in sorted(libraries)]


def _described(
    name: str, uri: str, listed: Mapping[str, Any], algorithm: str, **digests: str
) -> dict[str, Any]:
    claimed = listed.get(uri or name, {}).get("digest", {})
    digests |= {algorithm: claimed[algorithm]} if algorithm in claimed else {}
    described = {"name": name, "uri": uri, "digest": digests}
    return {key: value for key, value in described.items() if value}


def _source(folder: Path, name: str, source: LockedSource) -> Material:
    """Return a source with its SHA-256, after a check of its BLAKE3."""
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
            "was changed during or after the build",
            file=str(path),
            remedy="build again while nothing changes the sources",
        )
    return Material(name=name, digests={"blake3": blake3, "sha256": writer.sha256.hex})


def _packages(lock: Lock, is_package: Callable[[str, str], bool]) -> Iterator[tuple[str, str]]:
    """Yield the distributions that the lock names, with their versions."""
    for name, version in lock.toolchain.items():
        if "/" not in name:  # a name with `/` is a digest of epctx's own sources
            distribution, _, number = version.rpartition(" ")
            yield distribution or name, number
    for each in lock.execution_providers.values():
        yield from (item for item in each.toolchain.items() if is_package(*item))
        yield from _brought(each.code)
    for group in lock.groups.values():
        for text in group.passes_of_others.values():
            yield from _brought(text)


def _brought(text: str) -> Iterator[tuple[str, str]]:
    """Parse `<package> <version> <digest>…`, the code of an EP or pass of another package."""
    words = [word for word in text.split() if not word.startswith("blake3:")]
    if len(words) == 2:
        yield words[0], words[1]


def _is_installed(name: str, version: str) -> bool:
    try:
        return importlib.metadata.version(name) == version
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False  # not a package: for example the version of a format


def _package(name: str, version: str) -> Material:
    dir_hash = _dir_hash(name) if _is_installed(name, version) else None
    digests = {} if dir_hash is None else {"dirHash": dir_hash.hex}
    return Material(name=name, uri=_uri(name, version), digests=digests)


def _uri(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


@functools.cache
def _dir_hash(name: str) -> Digest | None:
    distribution = importlib.metadata.distribution(name)
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if "dir_info" in origin:
        return None  # installed from a folder: its files name that folder
    listed = {
        file.as_posix(): Path(str(distribution.locate_file(file)))
        for file in distribution.files or ()
        if _is_of_the_wheel(file)
    }
    present = {name: path for name, path in listed.items() if path.is_file()}
    if not present or len(present) < len(listed):
        return None
    return digest.of_folder(
        hashing.of_each(lambda name: digest.of_file(present[name], "sha256"), present)
    )


def _is_of_the_wheel(file: PurePosixPath) -> bool:
    """Tell whether a file came with the wheel: no bytecode, installer note or script."""
    return (
        "__pycache__" not in file.parts
        and ".." not in file.parts
        and not (file.name in _OF_INSTALLERS and file.parts[0].endswith(".dist-info"))
    )


def _libraries(lock: Lock) -> Iterator[Material]:
    """Yield the shared libraries of EPs and onnxruntime, and epctx's own code, from the lock."""
    for name, text in lock.toolchain.items():
        yield from _blake3(name, text)
    for ep, each in lock.execution_providers.items():
        yield from _blake3(f"{ep}/code", each.code.rpartition(" ")[2])
        for name, text in each.toolchain.items():
            yield from _blake3(name, text)


def _blake3(name: str, text: str) -> Iterator[Material]:
    algorithm, _, hexadecimal = text.partition(":")
    if algorithm == "blake3":
        yield Material(name=name, digests={"blake3": hexadecimal})


UNIDENTIFIED_BUILDER: Final = "urn:epctx:unidentified-builder"
"""Builder id if none is known, since SLSA's provenance v1 requires one. No policy that names a
builder accepts it. (BuildKit leaves the id empty, npm refuses to write provenance.)
"""
_SYSTEMS: Final = (
    # The workflow, as in GitHub's own attestations.
    "{GITHUB_SERVER_URL}/{GITHUB_WORKFLOW_REF}",
    # The runner, as in GitLab's own provenance.
    "{CI_PROJECT_URL}/-/runners/{CI_RUNNER_ID}",
    "{SYSTEM_COLLECTIONURI}{SYSTEM_TEAMPROJECTID}/_build?definitionId={SYSTEM_DEFINITIONID}",
    "{JENKINS_URL}job/{JOB_NAME}",
)


def identify_builder(environment: Mapping[str, str]) -> str | None:
    """Return the builder URI from the variables of a CI system (GitHub, GitLab, Azure, Jenkins);
    None if they name none.
    """
    for template in _SYSTEMS:
        try:
            uri = template.format_map({name: text for name, text in environment.items() if text})
        except KeyError:
            continue
        if uri.startswith(("https://", "http://")):
            return uri
    return None


def pushed_release(files: Mapping[str, LockedFile]) -> LockedFile:
    """Return the manifest that `epctx push` makes of `dist/<name>` with these files, by path."""
    blobs = {
        path: Blob(digest=Digest("sha256", file.sha256), size=file.size)
        for path, file in files.items()
    }
    package = artifact.package(blobs)
    return LockedFile(sha256=package.digest.hex, size=len(package.manifest))


def artifact_digest(content: str) -> LockedFile:
    """Return a manifest by its digest, `sha256:…`; its size is unknown."""
    return LockedFile(sha256=digest.parsed(content, "sha256").hex, size=0)
