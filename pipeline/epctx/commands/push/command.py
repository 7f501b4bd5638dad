"""`epctx push`: a package as an artifact of a registry, with what is said of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from epctx.commands.moving import Moving
from epctx.commands.push import contents
from epctx.commands.push.contents import Attached
from epctx.engine.events import Listener
from epctx.engine.output import place
from epctx.error_codes import Code
from epctx.errors import StorageError, VerificationError
from epctx.files.digest import Digest
from epctx.oci import artifact
from epctx.oci.artifact import Artifact, Blob
from epctx.oci.opening import open_repository
from epctx.oci.reference import Reference
from epctx.text import Brief

if TYPE_CHECKING:
    from epctx.oci.registry import Came, Repository


class PushReport(Brief, frozen=True, kw_only=True):
    """A package in a registry.

    Attributes:
        reference: where it is.
        digest: of its manifest, `sha256:…`: always the same for the same package.
        state: pushed, or up to date: the same was there.
        files: how many files it has.
        size: of all different ones, in bytes.
        sent: bytes that were not in the repository.
        mounted: bytes that the registry took from another repository of its own.
        attached: the signature and the attestations that are there with it, by name.
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
    """Push a package, and what is said of it, unless they are there.

    Args:
        folder: the package, or `dist/<name>`.
        insecure: the registry speaks plain HTTP.
        mount: another repository of the registry, which may have some of the files.
        waiting: called if a build holds the package.

    Raises:
        UsageError: there is no package, or the extra is not installed.
        VerificationError: the package is not what it says, or not what the reference asks for.
        StorageError: the registry does not take it.
    """
    with (
        place.undisturbed([folder], waiting),
        open_repository(reference, insecure=insecure) as repository,
    ):
        files = contents.files(folder)
        made = artifact.package(files, name=contents.name(folder))
        _refuse_another(made, reference)
        attached = list(contents.attached(folder, made.digest))
        came = Counter[str]()
        new = repository.manifest(reference.name) != made.manifest
        if new:
            moving = Moving(folder.name, "push", listener)
            came = _upload(repository, folder, files, moving, mount)
            repository.upload(artifact.blob_of(made.config), made.config, _silent, None)
            repository.put_manifest(reference.name, made.manifest)
        told = [each.name for each in attached if attach(repository, made, each)]
    unique = {blob.digest: blob.size for blob in files.values()}
    return PushReport(
        reference=str(reference),
        digest=str(made.digest),
        state="pushed" if new or told else "up to date",
        files=len(files),
        size=sum(unique.values()),
        sent=came["sent"],
        mounted=came["mounted"],
        attached=tuple(each.name for each in attached),
    )


def attach(repository: Repository, made: Artifact, file: Attached) -> bool:
    """Put a file that is about an artifact beside it; False: it is there.

    Raises StoreError and Damaged, as the repository does.
    """
    subject = artifact.descriptor(made.manifest)
    own = artifact.referrer(file.kind, file.name, file.content, subject)
    told = artifact.descriptor(own.manifest, artifact_type=file.kind, name=file.name)
    known = repository.attached(made.digest)
    if any(each.digest == told.digest for each in known):
        return False
    for content in (file.content, own.config):
        repository.upload(artifact.blob_of(content), content, _silent, None)
    if not repository.put_manifest(told.digest, own.manifest):
        kept = [each for each in known if not artifact.replaces(told, each)]
        tag = artifact.fallback(made.digest)
        repository.put_manifest(tag, artifact.index([*kept, told]), artifact.INDEX)
    return True


def _refuse_another(made: Artifact, reference: Reference) -> None:
    if reference.digest not in (None, made.digest):
        raise VerificationError(
            f"is not what is to be pushed, which is {made.digest}",
            where=str(reference),
            remedy="leave the digest out, or build what it is of",
            code=Code.INTEGRITY,
        )


def _upload(
    repository: Repository,
    folder: Path,
    files: dict[str, Blob],
    moving: Moving,
    mount: str | None,
) -> Counter[str]:
    """Upload each content once; how many bytes came in which way."""
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
    """Of what is small nothing is told."""
