"""Where the files and the answers of jobs are between machines: in a store that all of them see."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from epctx import limits
from epctx.cache.digests import FreshDigests
from epctx.cache.remote.open import open_store
from epctx.cache.remote.store import Store
from epctx.cache.remote.tier import object_name, written
from epctx.error_codes import Code
from epctx.errors import StorageError, UsageError
from epctx.files import copying
from epctx.files.digest import Digest
from epctx.transfer.attempts import StoreError

VARIABLE: Final = "EPCTX_REMOTE_CACHE"
_KEPT: Final = 16 << 30
"""Bytes of what was fetched that stay for jobs to come."""


class Blob(Struct, frozen=True, kw_only=True):
    """A content: its BLAKE3, and its size in bytes."""

    digest: Digest
    size: int


class Blobs:
    """Contents by digest, and answers by nonce, in a store that need not be trusted. Thread-safe.

    An answer is an object that is called as a nonce: nobody who looks for a content asks for it,
    and gc takes it for one that no record names.

    Args:
        kept: a folder where what is fetched stays, as far as there is room; None: nothing stays.
    """

    def __init__(self, store: Store, kept: Path | None = None) -> None:
        self._store = store
        self._kept = kept
        self._digests = FreshDigests()
        self._there: set[Digest] = set()

    def put(self, path: Path) -> Blob:
        """Put a file's content there, unless it is there.

        Raises:
            StorageError: it cannot be read, or the store cannot be written.
        """
        with StorageError.if_refused(
            "cannot be read", file=str(path), remedy="run the command again when nothing writes it"
        ):
            blob = Blob(digest=self._digests.of(path), size=path.stat().st_size)
        if blob.digest not in self._there:
            name = object_name(blob.digest)
            with self._refusals(blob.digest):
                if self._store.size(name) != blob.size:
                    self._store.upload(name, path)
            self._there.add(blob.digest)
        return blob

    def fetch(self, blob: Blob, target: Path) -> None:
        """Write a content to the new file `target`, checked.

        Raises:
            StorageError: it is not there, it is another, or `target` cannot be written.
        """
        if self._kept is None:
            self._download(blob, target)
            return
        kept = self._kept / blob.digest.hex
        if not kept.exists():
            self._kept.mkdir(parents=True, exist_ok=True)
            new = self._kept / f"new-{uuid.uuid4().hex}"
            self._download(blob, new)
            new.replace(kept)
        copying.copy(kept, target)

    def tidy(self) -> None:
        """Remove what was kept longest, where it is too much; nothing is fetched meanwhile."""
        if self._kept is None or not self._kept.is_dir():
            return
        found = sorted(self._kept.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        room = min(_KEPT, shutil.disk_usage(self._kept).free)
        for path in reversed(found):
            room -= path.stat().st_size
            if room < 0:
                path.unlink()

    def say(self, nonce: Digest, text: str) -> None:
        """Put an answer there. Raises StorageError."""
        with self._refusals(nonce):
            self._store.write(object_name(nonce), text.encode())

    def heard(self, nonce: Digest) -> str:
        """Return an answer. Raises StorageError: there is none, or it is too large."""
        with self._refusals(nonce):
            content = self._store.read(object_name(nonce), limits.MACHINE_JOB.value)
            if content is None:
                raise StoreError("there is no answer")
        return content.decode(errors="replace")

    def forget(self, nonces: list[Digest]) -> None:
        """Remove answers; what is left of them goes with gc."""
        with suppress(StoreError):
            self._store.delete(map(object_name, nonces))

    def _download(self, blob: Blob, target: Path) -> None:
        with self._refusals(blob.digest):
            try:
                pieces = self._store.stream(object_name(blob.digest), blob.size)
                if pieces is None or not written(pieces, blob.digest, blob.size, target):
                    raise StoreError("it is not there, or is not what its digest says")
            except StoreError:
                target.unlink(missing_ok=True)
                raise

    @contextmanager
    def _refusals(self, name: Digest) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise StorageError(
                "did not come through what the machines share",
                where=str(name),
                why=f"{self._store.url}: {error}",
                remedy=f"check that {VARIABLE} leads all of them to one place, and run it again",
            ) from error


def shared(url: str | None, kept: Path | None = None) -> Blobs:
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
    return Blobs(open_store(url), kept)
