"""Files out of a registry, on the way to a folder that is there whole or not at all.

They lie in a hidden folder beside it, by their digests, until all of them are there: a pull that
was broken off goes on from them. Nothing of a manifest is a path before they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import filelock

from epctx.commands.moving import Moving
from epctx.errors import Interrupted, StorageError
from epctx.files import copying, outputs
from epctx.files.digest import CHUNK
from epctx.oci.artifact import Blob, Damaged
from epctx.text import size_words
from epctx.transfer.attempts import StoreError

if TYPE_CHECKING:
    from epctx.oci.registry import Repository

_WORK: Final = ".{}.pulling"


@contextlib.contextmanager
def working(folder: Path) -> Iterator[Path]:
    """The hidden folder of a pull into `folder`, this user's alone.

    It stays if the pull is interrupted, or if the registry may give the rest another time.

    Raises:
        StorageError: the system refuses, another command pulls there, or one of both folders is
            another user's.
    """
    work = folder.with_name(_WORK.format(folder.name))
    for path in (folder, work):
        outputs.refuse_foreign(path)
    with outputs.writing(work):
        work.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            work.mkdir(mode=0o700)
        outputs.refuse_foreign(work)  # made by somebody else since
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
    """Have each content of a package in `work`, held to its digest and size.

    Raises:
        StorageError: the disk refuses, or has too little room.
        Damaged: what comes is not what its digest says.
        StoreError: it does not come.
    """
    unique = {blob.digest: path for path, blob in files.items()}
    there = sum(_size(_place(work, files[path])) for path in unique.values())
    missing = sum(blob.size for blob in files.values()) - there
    with outputs.writing(work):
        free = shutil.disk_usage(work).free
    if missing > free:
        raise StorageError(
            f"has {size_words(free)} free, and {size_words(missing)} are to come",
            file=str(work.parent),
            remedy="free some space, or pull into another folder",
        )

    def one(path: str) -> None:
        blob = files[path]
        moved = moving.begin(path, blob)
        place = _place(work, blob)
        kept = _size(place)
        if not _complete(repository, blob, place, moved) and not (
            # What an earlier pull left may have been spoilt since.
            kept and _complete(repository, blob, place, moved)
        ):
            raise Damaged(f"is not what its digest says: {path[:100]}")

    moving.each(one, unique.values())


def arrange(files: Mapping[str, Blob], work: Path, extra: Mapping[str, bytes]) -> Path:
    """Put what was fetched where it belongs in a new folder, with small files besides.

    Raises:
        StorageError: the disk refuses.
    """
    tree = work / "tree"
    with outputs.writing(tree):
        if tree.exists():
            shutil.rmtree(tree)
        left = Counter(blob.digest for blob in files.values())
        for path, blob in files.items():
            target = tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            left[blob.digest] -= 1
            if left[blob.digest]:
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
    """Get what is missing of a file; whether it is right then. What is wrong is removed."""
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
        right = done == blob.size and hasher.hexdigest() == blob.digest.hex
        if not right:
            place.unlink()
    moved(blob.size)
    return right


def _begun(stream: BinaryIO) -> tuple[hashlib._Hash, int]:
    """What an earlier attempt left of a file: its digest so far, its length."""
    hasher, done = hashlib.sha256(), 0
    stream.seek(0)
    while piece := stream.read(CHUNK):
        hasher.update(piece)
        done += len(piece)
    return hasher, done
