"""Where the files of jobs are between machines: contents by digest, in a place that all see."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from epctx.cache import Cache, Location
from epctx.cache.remote.open import open_store
from epctx.cache.remote.store import Store
from epctx.cache.remote.tier import object_name, written
from epctx.error_codes import Code
from epctx.errors import StorageError, UsageError
from epctx.files.digest import Digest, of_file
from epctx.transfer.attempts import StoreError

VARIABLE = "EPCTX_REMOTE_CACHE"


class Blob(Struct, frozen=True, kw_only=True):
    """A content: its BLAKE3, and its size in bytes."""

    digest: Digest
    size: int


class Blobs(Protocol):
    """Contents by digest. Thread-safe, and used by several machines at once."""

    def put(self, path: Path) -> Blob:
        """Put a file's content there, unless it is there.

        Raises:
            StorageError: it cannot be read, or what is shared cannot be written.
        """
        ...

    def fetch(self, blob: Blob, target: Path) -> None:
        """Write a content to the new file `target`, checked.

        Raises:
            StorageError: it is not there, it is another, or `target` cannot be written.
        """
        ...


class CachedBlobs:
    """The objects of a cache whose folder all of them see.

    Args:
        digest: of a file that is to be put.
    """

    def __init__(self, cache: Cache, digest: Callable[[Path], Digest] = of_file) -> None:
        self._objects = cache.objects
        self._digest = digest

    def put(self, path: Path) -> Blob:
        """As `Blobs` has it."""
        with StorageError.if_refused(
            "cannot be read", file=str(path), remedy="run the command again when nothing writes it"
        ):
            blob = Blob(digest=self._digest(path), size=path.stat().st_size)
        self._objects.adopt(path, content=blob.digest, size=blob.size)
        return blob

    def fetch(self, blob: Blob, target: Path) -> None:
        """As `Blobs` has it."""
        if not self._objects.fetch(blob.digest, size=blob.size, target=target):
            raise StorageError(
                "is not in what the machines share",
                where=str(blob.digest),
                remedy=f"check that {VARIABLE} leads all of them to one place, and run it again",
            )


class StoreBlobs:
    """The objects of a store, which need not be trusted.

    Args:
        digest: of a file that is to be put.
    """

    def __init__(self, store: Store, digest: Callable[[Path], Digest] = of_file) -> None:
        self._store = store
        self._digest = digest
        self._there: set[Digest] = set()

    def put(self, path: Path) -> Blob:
        """As `Blobs` has it."""
        with StorageError.if_refused(
            "cannot be read", file=str(path), remedy="run the command again when nothing writes it"
        ):
            blob = Blob(digest=self._digest(path), size=path.stat().st_size)
        if blob.digest not in self._there:
            name = object_name(blob.digest)
            with self._refusals(blob):
                if self._store.size(name) != blob.size:
                    self._store.upload(name, path)
            self._there.add(blob.digest)
        return blob

    def fetch(self, blob: Blob, target: Path) -> None:
        """As `Blobs` has it."""
        with self._refusals(blob):
            pieces = self._store.stream(object_name(blob.digest), blob.size)
            if pieces is None or not written(pieces, blob.digest, blob.size, target):
                target.unlink(missing_ok=True)
                raise StoreError("it is not there, or is not what its digest says")

    @contextmanager
    def _refusals(self, blob: Blob) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise StorageError(
                "did not come through what the machines share",
                where=str(blob.digest),
                why=f"{self._store.url}: {error}",
                remedy=f"check that {VARIABLE} leads all of them to one place, and run it again",
            ) from error


@contextmanager
def local(cache: Cache | None) -> Iterator[tuple[Blobs, Path]]:
    """For processes of this machine: its cache; where there is none to write, a folder of its own.

    With the folder that others open by `at`.
    """
    if cache is not None and not cache.location.readonly:
        yield CachedBlobs(cache, cache.digests.of), cache.location.folder
        return
    with tempfile.TemporaryDirectory(prefix="epctx-blobs-") as folder:
        yield at(Path(folder)), Path(folder)


def at(folder: Path) -> Blobs:
    """Those in a folder that is shared by whoever opens it so."""
    return CachedBlobs(Cache(Location(folder=folder), lambda notice: None))


def shared(url: str | None) -> Blobs:
    """Those that several machines share, by the URL of the shared cache.

    Raises:
        UsageError: there is none, or it is none that can be used.
    """
    if not url:
        raise UsageError(
            "other machines need a shared cache, and none is named",
            where=VARIABLE,
            remedy=f"set {VARIABLE} here and on each worker: s3://bucket/prefix, or a folder that "
            "all of them see, file:///mnt/share",
            code=Code.ENVIRONMENT,
        )
    return StoreBlobs(open_store(url))
