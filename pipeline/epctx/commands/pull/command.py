"""`epctx pull`: a package out of a registry, with what is said of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from epctx import limits
from epctx.commands.moving import Moving
from epctx.commands.pull import fetching
from epctx.engine.events import Listener
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.files import atomic, digest, filenames, outputs, paths
from epctx.files.digest import Digest
from epctx.oci import artifact
from epctx.oci.artifact import ATTESTATION, SIGNATURE, Blob, Damaged
from epctx.oci.opening import open_repository
from epctx.oci.reference import Reference
from epctx.text import Brief
from epctx.transfer.attempts import StoreError

if TYPE_CHECKING:
    from epctx.oci.registry import Repository


class PullReport(Brief, frozen=True, kw_only=True):
    """A package out of a registry.

    Attributes:
        reference: where it is.
        folder: where it is now.
        digest: of its manifest, `sha256:…`.
        state: pulled, or up to date: the same was there.
        files: how many files it has.
        size: of all different ones, in bytes.
        attached: what came with it, by name: the signature in the folder, attestations beside it.
        not_on_windows: why Windows cannot hold its files; None if it can.
    """

    reference: str
    folder: str
    digest: str
    state: Literal["pulled", "up to date"]
    files: int
    size: int
    attached: tuple[str, ...]
    not_on_windows: str | None = None


def run(reference: Reference, folder: Path, *, insecure: bool, listener: Listener) -> PullReport:
    """Pull a package into a folder, whole or not at all, and what is said of it.

    Args:
        folder: it must not be there, or be empty, or be that package already. Attestations are put
            beside it.
        insecure: the registry speaks plain HTTP.

    Raises:
        UsageError: something else is there, or the extra is not installed.
        VerificationError: what the registry has is not what it says.
        StorageError: the registry does not give it, or the disk refuses.
    """
    folder = folder.resolve()
    with open_repository(reference, insecure=insecure) as repository:
        content = repository.manifest(reference.name)
        if content is None:
            raise StoreError("it has nothing of that name")
        own = digest.of_bytes(content, "sha256")
        files = artifact.files(artifact.read(content))
        unfit = filenames.not_on_windows(files)
        if unfit is not None and sys.platform == "win32":
            raise Damaged(f"cannot be on Windows: {unfit}")
        attached = _attached(repository, own)
        there = _is_there(folder, files)
        signature = {n: c for n, c in attached.items() if n == outputs.SIGNATURE and n not in files}
        beside = {folder.with_name(n): c for n, c in attached.items() if n != outputs.SIGNATURE}
        for path, told in beside.items():
            _refuse_other(path, told)
        if not there:
            moving = Moving(reference.repository, "pull", listener)
            _pull(repository, folder, files, signature, moving)
        for path, told in beside.items():
            atomic.replace(path, told)
        for name, told in signature.items() if there else ():
            atomic.replace(folder / name, told)
    return PullReport(
        reference=str(reference),
        folder=folder.as_posix(),
        digest=str(own),
        state="up to date" if there else "pulled",
        files=len(files),
        size=sum({blob.digest: blob.size for blob in files.values()}.values()),
        attached=tuple(sorted(attached)),
        not_on_windows=unfit,
    )


def _pull(
    repository: Repository,
    folder: Path,
    files: Mapping[str, Blob],
    signature: Mapping[str, bytes],
    moving: Moving,
) -> None:
    with fetching.working(folder) as work:
        fetching.fetch(repository, files, work, moving)
        tree = fetching.arrange(files, work, signature)
        with outputs.writing(folder):
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()
            tree.rename(folder)
            outputs.sync_folder(folder.parent)


def _attached(repository: Repository, subject: Digest) -> dict[str, bytes]:
    """What is said of an artifact, by the name of its file; of several the last that is listed.

    Raises StoreError and Damaged, as the repository does.
    """
    found: dict[str, bytes] = {}
    for each in repository.attached(subject):
        if each.artifactType in (ATTESTATION, SIGNATURE):
            content = repository.manifest(str(artifact.blob(each).digest))
            if content is None:
                raise Damaged("lists what it does not have")
            file = artifact.attached(artifact.read(content), subject)
            if file is not None:
                found[file[0]] = _small(repository, file[1])
    return found


def _small(repository: Repository, blob: Blob) -> bytes:
    content = b"".join(repository.stream(blob))
    if digest.of_bytes(content, "sha256") != blob.digest:
        raise Damaged("is not what its digest says")
    return content


def _is_there(folder: Path, files: Mapping[str, Blob]) -> bool:
    """Whether a folder is the package; False: there is none.

    Raises:
        UsageError: it is something else.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        held = set(paths.entries(folder)) - ({outputs.SIGNATURE} - files.keys())
        same = held == files.keys() and all(
            paths.missing(folder, path) is None
            and digest.of_file(folder / path, "sha256") == blob.digest
            for path, blob in files.items()
        )
    except OSError:
        same = False
    if not same:
        raise _in_the_way(folder)
    return True


def _refuse_other(path: Path, content: bytes) -> None:
    if path.exists() and not (
        path.is_file()
        and path.stat().st_size <= limits.REGISTRY_ATTACHED_BYTES.value
        and path.read_bytes() == content
    ):
        raise _in_the_way(path)


def _in_the_way(path: Path) -> UsageError:
    return UsageError(
        "is something else than what is to be pulled",
        file=path.as_posix(),
        remedy="pull into a folder that is not there, or move it away",
        code=Code.IN_THE_WAY,
    )
