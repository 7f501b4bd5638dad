"""Files and answers of jobs, in a store that all machines see."""

from __future__ import annotations

import hmac
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import blake3
from msgspec import Struct

from epctx import limits
from epctx.cache.remote.open import open_store
from epctx.cache.remote.store import Store
from epctx.cache.remote.tier import object_name, written
from epctx.error_codes import Code
from epctx.errors import StorageError, UsageError
from epctx.files import copying
from epctx.files.digest import Digest, of_bytes, of_file
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

    An answer is an object that is called as the digest of a nonce, and authenticated by the nonce,
    which the store does not know. For gc it is an object that no record names.

    Args:
        kept: a folder where what is fetched stays, as far as there is room; None: nothing stays.
        digest: of a file that is to be put.
    """

    def __init__(
        self, store: Store, kept: Path | None = None, digest: Callable[[Path], Digest] = of_file
    ) -> None:
        self._store = store
        self._kept = kept
        self._digest = digest
        self._lock = threading.Lock()

    def put(self, path: Path) -> Blob:
        """Put a file's content there, unless there is one of its name and size.

        Raises:
            StorageError: it cannot be read, or the store cannot be written.
        """
        with StorageError.if_refused(
            "cannot be read", file=str(path), remedy="run the command again when nothing writes it"
        ):
            blob = Blob(digest=self._digest(path), size=path.stat().st_size)
        with self._refusals(blob.digest):
            self._store.upload(object_name(blob.digest), path)
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
        with self._lock:  # two jobs with one content fetch it once
            if not kept.exists():
                self._make_room(blob.size)
                self._download(blob, kept)
            copying.copy(kept, target)

    def say(self, nonce: Digest, text: str) -> None:
        """Put an answer there. Raises StorageError."""
        with self._refusals(nonce):
            self._store.write(_answer_name(nonce), f"{_proof(nonce, text)}{text}".encode())

    def heard(self, nonce: Digest) -> str:
        """Return an answer. Raises StorageError: there is none of who knows the nonce."""
        with self._refusals(nonce):
            most = limits.MACHINE_JOB.value + len(nonce.hex)
            content = self._store.read(_answer_name(nonce), most)
            if content is None:
                raise StoreError("there is no answer")
            said = content.decode(errors="replace")
            proof, text = said[: len(nonce.hex)], said[len(nonce.hex) :]
            if not hmac.compare_digest(proof.encode(), _proof(nonce, text).encode()):
                raise StoreError("an answer there is not of the worker that was asked")
        return text

    def forget(self, nonces: list[Digest]) -> None:
        """Remove answers; what is left of them goes with gc."""
        with suppress(StoreError):
            self._store.delete(map(_answer_name, nonces))

    def _make_room(self, size: int) -> None:
        """Remove what was kept longest, where it is too much."""
        assert self._kept is not None
        self._kept.mkdir(parents=True, exist_ok=True)
        found = sorted(self._kept.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        room = min(_KEPT, shutil.disk_usage(self._kept).free) - size
        for path in reversed(found):
            room -= path.stat().st_size
            if room < 0:
                path.unlink()

    def _download(self, blob: Blob, target: Path) -> None:
        name = object_name(blob.digest)
        with self._refusals(blob.digest):
            try:
                pieces = self._store.stream(name, blob.size)
                if pieces is None:
                    raise StoreError("it is not there")
                if not written(pieces, blob.digest, blob.size, target):
                    self._store.delete([name])  # whoever has it puts it there anew
                    raise StoreError("it is not what its digest says")
            except BaseException:
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


def new_nonce() -> Digest:
    """Return the name of an answer, which nobody can guess."""
    return Digest("blake3", secrets.token_hex(32))


def _answer_name(nonce: Digest) -> str:
    return object_name(of_bytes(bytes.fromhex(nonce.hex)))


def _proof(nonce: Digest, text: str) -> str:
    return blake3.blake3(text.encode(), key=bytes.fromhex(nonce.hex)).hexdigest()


def shared(
    url: str | None, kept: Path | None = None, digest: Callable[[Path], Digest] = of_file
) -> Blobs:
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
    return Blobs(open_store(url), kept, digest)
