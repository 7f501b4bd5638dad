"""Object stores by obstore: S3 and compatible stores, Google Cloud Storage, Azure.

Measured behaviour of obstore 0.12.1: it repeats a failed request if that may help, but not after a
body breaks off. It ignores `Retry-After`. It always follows redirects of a GET. It does not send
the credentials to another host, but sends them again if that host redirects to itself. Its errors
quote URLs and answers, which may contain keys, so epctx never shows them.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from epctx import limits
from epctx.cache.remote.store import Stored, checked, holds, is_name
from epctx.transfer.attempts import Passing, StoreError, exactly, repeatedly, resumed, seconds_for

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult
    from obstore.store import RetryConfig

_PART: Final = 8 << 20
_PIECE: Final = 1 << 20
_AT_ONCE: Final = 4
_MOST_PARTS: Final = 9_000
"""Greatest number of parts of an upload; S3 allows 10,000."""
_DELETED_AT_ONCE: Final = 1_000
_STATUS: Final = re.compile(r"non-2xx status code: (\d{3}[ A-Za-z'-]{0,40})")
_MISSING: Final = ("NoSuchBucket", "ContainerNotFound")
_CAUSES: Final = {
    "TimedOut": "it does not answer in time",
    "dns error": "its host name cannot be resolved",
    "ConnectionRefused": "the connection was refused",
    "ertificate": "its certificate is not accepted",
    "redirect": "it redirects elsewhere, and on from there",
    "NotPartial": "it sends a whole blob where a part was requested",
}
_NO_CREDENTIALS: Final = (
    "MissingAccessKeyId",
    "MissingSecretAccessKey",
    "MissingAccount",
    "token request",
    "/latest/api/token",
    "169.254.169.254",
)
_CLIENTS: Final = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}


class ObjectStore:
    """A store below a prefix of a bucket or container. Thread-safe."""

    def __init__(self, url: str, *, allow_http: bool) -> None:
        """Make a client. Raises StoreError if the environment lacks a required variable.

        Args:
            url: `s3://bucket/prefix`, or `gs://`, `az://`.
            allow_http: allow an endpoint without TLS.
        """
        self._url, self._allow_http = url, allow_http
        self._store = self._client(limits.REMOTE_STALL_SECONDS.value)
        # For large uploads: the store answers after a part, or after it has joined all parts.
        self._patient = self._client(seconds_for(_PART))

    @property
    def url(self) -> str:
        """URL as the user gave it."""
        return self._url

    @cached_property
    def _readers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(2 * _AT_ONCE, "epctx-remote")

    def read(self, name: str, most: int) -> bytes | None:
        """See `Store`."""
        try:
            return repeatedly(lambda: self._whole(checked(name), most))
        except FileNotFoundError:
            return None

    def stream(self, name: str, size: int) -> Iterator[bytes] | None:
        """See `Store`."""
        try:
            first = self._part(checked(name), size, 0)
        except FileNotFoundError:
            return None
        return itertools.chain(first, self._parts(name, size))

    def size(self, name: str) -> int | None:
        """See `Store`."""
        try:
            with _telling():
                return obstore.head(self._store, checked(name))["size"]
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """See `Store`."""
        with _putting():
            try:
                obstore.put(self._store, checked(name), content, mode="create")
            except AlreadyExistsError:
                if not holds(self, name, content):
                    obstore.put(self._store, name, content)

    def upload(self, name: str, source: Path) -> None:
        """See `Store`."""
        with _putting():
            size = source.stat().st_size
            if self.size(name) == size:
                return
            store = self._store if size <= _PIECE else self._patient
            part = max(_PART, -(-size // _MOST_PARTS))
            try:
                obstore.put(store, name, source, chunk_size=part, max_concurrency=_AT_ONCE)
            except (BaseError, OSError):  # perhaps only the answer was lost
                if self.size(name) != size:
                    raise

    def list(self, prefix: str) -> Iterator[Stored]:
        """See `Store`."""
        folder = prefix.rpartition("/")[0]
        with _putting():
            entries = itertools.chain.from_iterable(obstore.list(self._store, folder or None))
            for count, each in enumerate(entries):
                if count >= limits.REMOTE_NAMES.value:
                    raise StoreError(f"it lists more than {limits.REMOTE_NAMES}")
                name, modified = each["path"], each["last_modified"].timestamp()
                if is_name(name) and name.startswith(prefix):
                    yield Stored(name=name, size=each["size"], modified=modified)

    def delete(self, names: Iterable[str]) -> None:
        """See `Store`."""
        remaining = map(checked, names)
        while batch := tuple(itertools.islice(remaining, _DELETED_AT_ONCE)):
            with _telling():
                try:
                    obstore.delete(self._store, batch)
                except FileNotFoundError:  # Azure's error; the other blobs may still exist
                    for each in batch:
                        with contextlib.suppress(FileNotFoundError):
                            obstore.delete(self._store, each)

    def _client(self, stall: float) -> S3Store | GCSStore | AzureStore:
        scheme, _, place = self._url.partition("://")
        bucket, _, prefix = place.partition("/")
        with _telling():
            client: S3Store | GCSStore | AzureStore = _CLIENTS[scheme](
                bucket,
                prefix=prefix.strip("/") or None,
                client_options={
                    "allow_http": self._allow_http,
                    "connect_timeout": timedelta(seconds=limits.REMOTE_CONNECT_SECONDS.value),
                    "read_timeout": timedelta(seconds=stall),
                    "timeout": timedelta(seconds=seconds_for(_PART)),
                },
                retry_config=_retries(),
            )
        return client

    def _whole(self, name: str, most: int) -> bytes:
        answer = self._get(name)
        size = answer.meta["size"]
        if size > most:
            raise StoreError(f"it has {size:,} bytes, more than the {most:,} allowed")
        return b"".join(exactly(_body(answer), size))

    def _parts(self, name: str, size: int) -> Iterator[bytes]:
        """Yield the bytes after the first part; a few parts are requested ahead."""
        starts = iter(range(_PART, size, _PART))
        coming: deque[Future[tuple[bytes, ...]]] = deque()
        try:
            while True:
                for start in itertools.islice(starts, _AT_ONCE - len(coming)):
                    coming.append(self._readers.submit(self._part, name, size, start))
                if not coming:
                    return
                yield from coming.popleft().result()
        except FileNotFoundError:
            raise StoreError("a blob disappeared while it was read") from None
        finally:
            for each in coming:
                each.cancel()

    def _part(self, name: str, size: int, start: int) -> tuple[bytes, ...]:
        """Return one part of a blob. Raises FileNotFoundError if the blob does not exist."""
        length = min(_PART, size - start)
        return tuple(
            resumed(lambda done: self._range(name, size, start + done, length - done), length)
        )

    def _range(self, name: str, size: int, start: int, length: int) -> Iterator[bytes]:
        answer = self._get(name, {"range": (start, start + length)} if length else {})
        if answer.meta["size"] != size:
            raise StoreError(f"its blob has {answer.meta['size']:,} bytes, not {size:,}")
        return _body(answer)

    def _get(self, name: str, options: GetOptions | None = None) -> GetResult:
        with _telling():
            return obstore.get(self._store, name, options=options)


def _body(answer: GetResult) -> Iterator[bytes]:
    """Yield the bytes of an answer. Raises Passing if the answer breaks off."""
    try:
        yield from answer.stream(min_chunk_size=_PIECE)
    except (BaseError, OSError) as error:
        raise Passing(f"its answer breaks off: {_error(error)}") from None


def _retries() -> RetryConfig:
    return {
        "max_retries": limits.REMOTE_ATTEMPTS.value - 1,
        "retry_timeout": timedelta(seconds=seconds_for(_PART)),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=5),
            "base": 2,
        },
    }


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Turn obstore's errors into StoreError; the FileNotFoundError for a missing blob passes."""
    try:
        yield
    except FileNotFoundError as error:
        if any(each in str(error) for each in _MISSING):
            raise StoreError("there is no such bucket or container", lasting=True) from None
        raise
    except (BaseError, OSError) as error:
        raise _error(error) from None


@contextlib.contextmanager
def _putting() -> Iterator[None]:
    """Turn obstore's errors of a write into StoreError, FileNotFoundError included."""
    try:
        with _telling():
            yield
    except FileNotFoundError as error:
        if "NoSuchUpload" in str(error):
            raise StoreError("it has lost an upload in progress") from None
        raise StoreError("there is no such bucket or container, or no such file") from None


def _error(error: Exception) -> StoreError:
    """Translate an error: the words of obstore quote the answer, which may contain keys."""
    text = str(error)
    request = text.partition(" - ")[0]  # the answer's text follows
    if any(each in request for each in _NO_CREDENTIALS):
        return StoreError("the environment has no credentials for it", lasting=True)
    if status := _STATUS.search(text):
        refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        return StoreError(f"it answers {status[1].strip()}", lasting=refused)
    causes = (words for mark, words in _CAUSES.items() if mark in text)
    return StoreError(next(causes, "it cannot be reached, or its answer is not that of a store"))
