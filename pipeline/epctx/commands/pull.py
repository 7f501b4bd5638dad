"""`epctx pull`: fetch a package from an OCI registry."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

import filelock

from epctx import limits
from epctx.commands.moving import Moving
from epctx.engine.events import Listener
from epctx.error_codes import Code
from epctx.errors import Interrupted, StorageError, UsageError
from epctx.files import atomic, copying, digest, filenames, outputs, paths
from epctx.files.digest import CHUNK, Digest
from epctx.oci import artifact
from epctx.oci.artifact import ATTESTATION, SIGNATURE, Blob, Damaged
from epctx.oci.opening import open_repository
from epctx.oci.reference import Reference
from epctx.text import Brief, size_words
from epctx.transfer.attempts import StoreError

if TYPE_CHECKING:
    from epctx.oci.registry import Repository

_WORK: Final = ".{}.pulling"


@contextlib.contextmanager
def working(folder: Path) -> Iterator[Path]:
    """Yield the hidden work folder of a pull into `folder`, which only this user can access.

    The folder is kept if the pull is interrupted, or if a later attempt may get the rest.

    Raises:
        StorageError: the work folder cannot be made, another command pulls into `folder`, or
            another user owns one of the two folders.
    """
    work = folder.with_name(_WORK.format(folder.name))
    for path in (folder, work):
        outputs.refuse_foreign(path)
    with outputs.writing(work):
        work.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            work.mkdir(mode=0o700)
        outputs.refuse_foreign(work)  # another user may have created it meanwhile
        lock = filelock.FileLock(work / "lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise StorageError(
            "is being pulled by another command",
            file=str(folder),
            remedy="wait for it, or pull into another folder",
        ) from None
    try:
        with lock:
            yield work
    except (Interrupted, KeyboardInterrupt):
        raise
    except BaseException as error:
        if not isinstance(error, StoreError) or error.lasting:
            shutil.rmtree(work, ignore_errors=True)
        raise
    with outputs.writing(work):
        shutil.rmtree(work)


def fetch(repository: Repository, files: Mapping[str, Blob], work: Path, moving: Moving) -> None:
    """Download the contents of a package into `work`, and check digest and size of each.

    Raises:
        StorageError: a file cannot be written, or the disk has too little space.
        Damaged: the content does not match its digest.
        StoreError: the registry does not deliver the content.
    """
    unique = {blob.digest: path for path, blob in files.items()}
    present = sum(_size(_place(work, files[path])) for path in unique.values())
    missing_bytes = sum(blob.size for blob in files.values()) - present
    with outputs.writing(work):
        free = shutil.disk_usage(work).free
    if missing_bytes > free:
        raise StorageError(
            f"has {size_words(free)} free, but {size_words(missing_bytes)} are needed",
            file=str(work.parent),
            remedy="free some space, or pull into another folder",
        )

    def one(path: str) -> None:
        blob = files[path]
        moved = moving.begin(path, blob)
        place = _place(work, blob)
        resumed = _size(place)
        if not _complete(repository, blob, place, moved) and not (
            # The rest of an earlier pull may be damaged: download the whole file.
            resumed and _complete(repository, blob, place, moved)
        ):
            raise Damaged(f"does not match its digest: {path[:100]}")

    moving.each(one, unique.values())


def arrange(files: Mapping[str, Blob], work: Path, extra: Mapping[str, bytes]) -> Path:
    """Arrange the downloaded files in a new folder, and add small files.

    Raises:
        StorageError: the files cannot be written.
    """
    tree = work / "tree"
    with outputs.writing(tree):
        if tree.exists():
            shutil.rmtree(tree)
        remaining = Counter(blob.digest for blob in files.values())
        for path, blob in files.items():
            target = tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            remaining[blob.digest] -= 1
            if remaining[blob.digest]:
                copying.copy(_place(work, blob), target)
            else:
                _place(work, blob).rename(target)
        for name, content in extra.items():
            (tree / name).write_bytes(content)
        outputs.sync_files(tree / name for name in (*files, *extra))
        for each in {(tree / path).parent for path in files}:
            outputs.sync_folder(each)
    return tree


def _place(work: Path, blob: Blob) -> Path:
    return work / blob.digest.hex


def _size(path: Path) -> int:
    return path.lstat().st_size if path.is_file() and not path.is_symlink() else 0


def _complete(
    repository: Repository, blob: Blob, place: Path, moved: Callable[[int], None]
) -> bool:
    """Download the rest of a file; return whether its digest is right, and delete a wrong file."""
    with outputs.writing(place):
        if place.is_symlink() or _size(place) > blob.size:
            place.unlink()
        with place.open("a+b") as stream:
            hasher, done = _begun(stream)
            if done < blob.size or not done:
                for piece in repository.stream(blob, done):
                    hasher.update(piece)
                    stream.write(piece)
                    done += len(piece)
                    moved(done)
        matches = done == blob.size and hasher.hexdigest() == blob.digest.hex
        if not matches:
            place.unlink()
    moved(blob.size)
    return matches


def _begun(stream: BinaryIO) -> tuple[hashlib._Hash, int]:
    """Digest and length of the part that an earlier attempt downloaded."""
    hasher, done = hashlib.sha256(), 0
    stream.seek(0)
    while piece := stream.read(CHUNK):
        hasher.update(piece)
        done += len(piece)
    return hasher, done


class PullReport(Brief, frozen=True, kw_only=True):
    """Package from a registry.

    Attributes:
        reference: reference of the package.
        folder: local folder of the package.
        digest: digest of its manifest, `sha256:…`.
        state: `pulled`, or `up to date` if the same package existed already.
        files: number of files.
        size: total size of its different contents, in bytes.
        attached: names of attached files: the signature is in the folder, attestations are beside
            it.
        not_on_windows: reason why Windows cannot store its files; None if it can.
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
    """Pull a package and its attached files into a folder, whole or not at all.

    Args:
        folder: must not exist, be empty, or contain the same package. Attestations are written
            beside it.
        insecure: use plain HTTP.

    Raises:
        UsageError: the folder contains something else, or the extra is not installed.
        VerificationError: the registry's content does not match its digests.
        StorageError: the registry does not deliver it, or files cannot be written.
    """
    folder = folder.resolve()
    with open_repository(reference, insecure=insecure) as repository:
        content = repository.manifest(reference.name)
        if content is None:
            raise StoreError("it has no artifact of that name")
        manifest_digest = digest.of_bytes(content, "sha256")
        files = artifact.files(artifact.read(content))
        unfit = filenames.not_on_windows(files)
        if unfit is not None and sys.platform == "win32":
            raise Damaged(f"cannot be stored on Windows: {unfit}")
        attached = _attached(repository, manifest_digest)
        up_to_date = _holds(folder, files)
        signature = {n: c for n, c in attached.items() if n == outputs.SIGNATURE and n not in files}
        beside = {folder.with_name(n): c for n, c in attached.items() if n != outputs.SIGNATURE}
        for path, attachment in beside.items():
            _refuse_other(path, attachment)
        if not up_to_date:
            moving = Moving(reference.repository, "pull", listener)
            _pull(repository, folder, files, signature, moving)
        for path, attachment in beside.items():
            atomic.replace(path, attachment)
        for name, attachment in signature.items() if up_to_date else ():
            atomic.replace(folder / name, attachment)
    return PullReport(
        reference=str(reference),
        folder=folder.as_posix(),
        digest=str(manifest_digest),
        state="up to date" if up_to_date else "pulled",
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
    with working(folder) as work:
        fetch(repository, files, work, moving)
        tree = arrange(files, work, signature)
        with outputs.writing(folder):
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()
            tree.rename(folder)
            outputs.sync_folder(folder.parent)


def _attached(repository: Repository, subject: Digest) -> dict[str, bytes]:
    """Signatures and attestations of an artifact, by file name; the last one listed wins.

    Raises StoreError and Damaged, as the repository does.
    """
    files: dict[str, bytes] = {}
    for each in repository.attached(subject):
        if each.artifactType in (ATTESTATION, SIGNATURE):
            content = repository.manifest(str(artifact.blob(each).digest))
            if content is None:
                raise Damaged("lists a manifest that it does not have")
            file = artifact.attached(artifact.read(content), subject)
            if file is not None:
                files[file[0]] = _small(repository, file[1])
    return files


def _small(repository: Repository, blob: Blob) -> bytes:
    content = b"".join(repository.stream(blob))
    if digest.of_bytes(content, "sha256") != blob.digest:
        raise Damaged("does not match its digest")
    return content


def _holds(folder: Path, files: Mapping[str, Blob]) -> bool:
    """Tell whether a folder contains the package; False if it is missing or empty.

    Raises:
        UsageError: the folder contains something else.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        entries = set(paths.entries(folder)) - ({outputs.SIGNATURE} - files.keys())
        matches = entries == files.keys() and all(
            paths.missing(folder, path) is None
            and digest.of_file(folder / path, "sha256") == blob.digest
            for path, blob in files.items()
        )
    except OSError:
        matches = False
    if not matches:
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
        "already exists, and is not what is to be pulled",
        file=path.as_posix(),
        remedy="pull into a new folder, or move this away",
        code=Code.IN_THE_WAY,
    )
