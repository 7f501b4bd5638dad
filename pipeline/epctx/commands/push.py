"""`epctx push`: push a package to an OCI registry."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from epctx import codec, limits
from epctx.commands.moving import Moving
from epctx.commands.package import form
from epctx.commands.package.form import MANIFEST
from epctx.engine.events import Listener
from epctx.engine.output.place import PACKAGE, undisturbed
from epctx.error_codes import Code
from epctx.errors import StorageError, UsageError, VerificationError
from epctx.files import digest, hashing, outputs, paths
from epctx.files.digest import Digest
from epctx.files.regular import open_regular
from epctx.oci import artifact
from epctx.oci.artifact import ATTESTATION, ATTESTATION_FILES, SIGNATURE, Artifact, Blob
from epctx.oci.opening import open_repository
from epctx.oci.reference import Reference
from epctx.text import Brief
from epctx.verification import integrity

if TYPE_CHECKING:
    from epctx.oci.registry import Came, Repository


class Attached(Struct, frozen=True, kw_only=True):
    """File that is attached to a package: media type, name, content."""

    kind: str
    name: str
    content: bytes


class _Named(Struct, frozen=True):
    package_name: str | None = None


def files_to_push(folder: Path) -> dict[str, Blob]:
    """Every file of a package, or of the groups in a folder, by path with `/`.

    Raises:
        UsageError: the folder has neither a package nor groups.
        ModelError: a file cannot be read.
        VerificationError: a file does not match SHA256SUMS, or is not listed in one.
    """
    names = [name for name in paths.entries(folder) if name != outputs.SIGNATURE]
    expected = _expected(folder, names)
    blobs = hashing.of_each(lambda name: _blob(folder / name), _regular(folder, names))
    for name in sorted({*blobs, *expected}):
        if name not in blobs:
            raise _wrong(folder / name, f"is missing, but {outputs.SUMS} lists it")
        if name not in expected and name.rpartition("/")[2] != outputs.SUMS:
            raise _wrong(folder / name, f"is not listed in any {outputs.SUMS}")
        if name in expected and blobs[name].digest != expected[name]:
            raise _wrong(folder / name, f"was changed: it does not match {outputs.SUMS}")
    return blobs


def package_name(folder: Path) -> str | None:
    """Name in a package's manifest; None if it has none or the folder is no package."""
    if not form.is_package(folder):
        return None
    return codec.decode(_read(folder / MANIFEST), _Named).package_name


def attachments(folder: Path, content: Digest) -> Iterator[Attached]:
    """Signature in a folder, and attestations beside the folder.

    Raises:
        VerificationError: an attestation does not name the artifact with this digest.
    """
    signature = folder / outputs.SIGNATURE
    if signature.is_file():
        yield Attached(kind=SIGNATURE, name=outputs.SIGNATURE, content=_read(signature))
    stem = folder.name.removesuffix(PACKAGE)
    for place in (folder.with_name(f"{stem}{ending}") for ending in ATTESTATION_FILES):
        if place.is_file():
            attestation = _read(place)
            if place.suffix == ".json" and not names(attestation, content):
                raise VerificationError(
                    "does not name this package",
                    file=place.as_posix(),
                    why=f"none of its subjects is {content}",
                    remedy="write it again with `epctx package --attest`, or move it away",
                    code=Code.INTEGRITY,
                )
            yield Attached(kind=ATTESTATION, name=place.name, content=attestation)


def names(attestation: bytes, content: Digest) -> bool:
    """Tell whether an in-toto statement names the artifact with this digest as a subject."""
    try:
        document: Any = json.loads(attestation)
        return any(each["digest"]["sha256"] == content.hex for each in document["subject"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _expected(folder: Path, names: Sequence[str]) -> Mapping[str, Digest]:
    """Digests of all files listed in a SHA256SUMS of the folder."""
    nested = form.is_package(folder)
    sums = [
        each
        for each in names
        if each.rpartition("/")[2] == outputs.SUMS and not (nested and "/" in each)
    ]
    if not sums:
        raise UsageError(
            f"is neither a package nor a folder with built groups: there is no {outputs.SUMS}",
            file=folder.as_posix(),
            remedy="name dist/<name>.ortpackage, which `epctx package` writes, or dist/<name>",
            code=Code.NO_SUCH_PATH,
        )
    expected: dict[str, Digest] = {}
    for each in sums:
        inner = each.removesuffix(outputs.SUMS)
        listed, faults = integrity.read_sums(folder / inner, nested=nested)
        if faults:
            raise _wrong(folder / each, faults[0])
        expected |= {f"{inner}{file.name}": file.digest for file in listed}
    return expected


def _regular(folder: Path, names: Sequence[str]) -> Sequence[str]:
    for each in names:
        if (reason := paths.missing(folder, each)) is not None:
            raise _wrong(folder / each, f"cannot be a file of a package: {reason}")
        if not paths.is_plain(each):
            raise _wrong(folder / each, "has a name that is not allowed on every system")
    return names


def _blob(path: Path) -> Blob:
    _, descriptor = open_regular(path, where=path.as_posix())
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        size = os.fstat(descriptor).st_size
        return Blob(digest=digest.of_stream(stream, "sha256"), size=size)


def _read(path: Path) -> bytes:
    _, descriptor = open_regular(path, where=path.as_posix())
    with os.fdopen(descriptor, "rb") as stream:
        content = stream.read(limits.REGISTRY_ATTACHED_BYTES.value + 1)
    if len(content) > limits.REGISTRY_ATTACHED_BYTES.value:
        raise _wrong(path, f"is larger than {limits.REGISTRY_ATTACHED_BYTES}")
    return content


def _wrong(path: Path, what: str) -> VerificationError:
    return VerificationError(
        what,
        file=path.as_posix(),
        remedy="do not push changed files: build again; `epctx verify` gives details",
        code=Code.INTEGRITY,
    )


class PushReport(Brief, frozen=True, kw_only=True):
    """Package in a registry.

    Attributes:
        reference: reference of the package.
        digest: digest of its manifest, `sha256:…`, which only depends on the package.
        state: `pushed`, or `up to date` if the registry had the same package.
        files: number of files.
        size: total size of its different contents, in bytes.
        sent: bytes that were uploaded because the repository did not have them.
        mounted: bytes that the registry copied from another of its repositories.
        attached: names of its signature and attestations.
    """

    reference: str
    digest: str
    state: Literal["pushed", "up to date"]
    files: int
    size: int
    sent: int
    mounted: int
    attached: tuple[str, ...]


def run(
    folder: Path,
    reference: Reference,
    *,
    insecure: bool,
    mount: str | None,
    listener: Listener,
    waiting: Callable[[], None],
) -> PushReport:
    """Push a package and its attached files, unless the registry has them.

    Args:
        folder: the package, or `dist/<name>`.
        insecure: use plain HTTP.
        mount: another repository of the registry that may have some of the files.
        waiting: called if a build holds the package.

    Raises:
        UsageError: the package does not exist, or the extra is not installed.
        VerificationError: the package does not match its checksums or the reference's digest.
        StorageError: the registry refuses the upload.
    """
    with (
        undisturbed([folder], waiting),
        open_repository(reference, insecure=insecure) as repository,
    ):
        files = files_to_push(folder)
        package = artifact.package(files, name=package_name(folder))
        _refuse_another(package, reference)
        attached = list(attachments(folder, package.digest))
        transferred = Counter[str]()
        is_new = repository.manifest(reference.name) != package.manifest
        if is_new:
            moving = Moving(folder.name, "push", listener)
            transferred = _upload(repository, folder, files, moving, mount)
            repository.upload(artifact.blob_of(package.config), package.config, _silent, None)
            repository.put_manifest(reference.name, package.manifest)
        newly_attached = [each.name for each in attached if attach(repository, package, each)]
    unique = {blob.digest: blob.size for blob in files.values()}
    return PushReport(
        reference=str(reference),
        digest=str(package.digest),
        state="pushed" if is_new or newly_attached else "up to date",
        files=len(files),
        size=sum(unique.values()),
        sent=transferred["sent"],
        mounted=transferred["mounted"],
        attached=tuple(each.name for each in attached),
    )


def attach(repository: Repository, target: Artifact, file: Attached) -> bool:
    """Attach a file to an artifact; return False if it is attached already.

    Raises StoreError and Damaged, as the repository does.
    """
    subject = artifact.descriptor(target.manifest)
    referrer = artifact.referrer(file.kind, file.name, file.content, subject)
    descriptor = artifact.descriptor(referrer.manifest, artifact_type=file.kind, name=file.name)
    attached = repository.attached(target.digest)
    if any(each.digest == descriptor.digest for each in attached):
        return False
    for content in (file.content, referrer.config):
        repository.upload(artifact.blob_of(content), content, _silent, None)
    if not repository.put_manifest(descriptor.digest, referrer.manifest):
        others = [each for each in attached if not artifact.replaces(descriptor, each)]
        tag = artifact.fallback(target.digest)
        repository.put_manifest(tag, artifact.index([*others, descriptor]), artifact.INDEX)
    return True


def _refuse_another(package: Artifact, reference: Reference) -> None:
    if reference.digest not in (None, package.digest):
        raise VerificationError(
            f"does not match the package, whose digest is {package.digest}",
            where=str(reference),
            remedy="remove the digest, or build the package that has it",
            code=Code.INTEGRITY,
        )


def _upload(
    repository: Repository,
    folder: Path,
    files: dict[str, Blob],
    moving: Moving,
    mount: str | None,
) -> Counter[str]:
    """Upload each content once; return the number of bytes by way of transfer."""
    unique: dict[Digest, str] = {blob.digest: path for path, blob in files.items()}

    def upload(path: str) -> Came:
        place, blob = folder / path, files[path]
        remedy = "run the command again, and let nothing else write there meanwhile"
        with StorageError.if_refused("cannot be read", file=place.as_posix(), remedy=remedy):
            return repository.upload(blob, place, moving.begin(path, blob), mount)

    sizes = Counter[str]()
    for path, how in moving.each(upload, unique.values()).items():
        sizes[how] += files[path].size
    return sizes


def _silent(done: int) -> None:
    """Report no progress: the item is small."""
