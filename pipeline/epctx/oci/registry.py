"""Client of a registry's repository, by the distribution specification 1.1.

https://github.com/opencontainers/distribution-spec. Callers check the digest of each blob. This
module bounds size and time, repeats a request if that may help, and sends credentials only to the
registry.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Literal
from urllib.parse import urlencode, urljoin, urlsplit

import requests

from epctx import limits
from epctx.files import digest as digests
from epctx.files.digest import Digest
from epctx.oci import artifact
from epctx.oci.access import Access, stored_credentials
from epctx.oci.artifact import Blob, Descriptor
from epctx.oci.reference import Reference
from epctx.transfer import client
from epctx.transfer.attempts import Passing, StoreError, repeatedly, resumed
from epctx.transfer.client import Absent, Header, HttpClient

CHUNK: Final = 16 << 20
"""Bytes of a blob that are sent at a time; a smaller blob is sent whole."""
_HOPS: Final = 3
_PAGES: Final = 20
_UNAUTHORIZED: Final = frozenset({401})
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_NO_REFERRERS: Final = frozenset({400, 404, 405, 501})
_LOST: Final = frozenset({404, 416})
_NEXT: Final = re.compile(r'<([^>]+)>;\s*rel="?next"?')
Came = Literal["there", "mounted", "sent"]
"""How a blob came into a repository."""
_BYTES: Final = {"Content-Type": "application/octet-stream"}
_ACCEPTED: Final = {"Accept": f"{artifact.MANIFEST}, {artifact.INDEX}"}


class _LostUpload(Passing):
    """The registry has lost an upload or has other bytes of it, so the upload must start again."""


class Repository:
    """A repository. Thread-safe.

    Args:
        reference: reference to an artifact in it.
        insecure: speak plain HTTP.
    """

    def __init__(self, reference: Reference, *, insecure: bool) -> None:
        host = reference.registry
        self._insecure = insecure
        self._root = f"{'http' if insecure else 'https'}://{host}"
        self._base = f"{self._root}/v2/{reference.repository}"
        self._client = HttpClient()
        self._access = Access(
            host, insecure=insecure, find=lambda: stored_credentials(reference.host)
        )

    def manifest(self, name: str) -> bytes | None:
        """Read the manifest of a tag or digest; None if there is none.

        Raises:
            StoreError: the registry does not answer, or sends a manifest of another digest.
        """
        content = self._read(f"{self._base}/manifests/{name}", _ACCEPTED)
        if content is not None and ":" in name and str(digests.of_bytes(content, "sha256")) != name:
            raise StoreError("it sends a manifest of another digest")
        return content

    def put_manifest(self, name: str, content: bytes, kind: str = artifact.MANIFEST) -> bool:
        """Put a manifest under a tag or its digest.

        Returns:
            True if the registry has noted the manifest's subject.

        Raises:
            StoreError: the registry refuses it, or has another manifest afterwards.
        """

        def attempt() -> bool:
            place, headers = f"{self._base}/manifests/{name}", {"Content-Type": kind}
            with self._request(
                "PUT", place, size=len(content), headers=headers, data=content
            ) as answer:
                return "OCI-Subject" in answer.headers

        noted = repeatedly(attempt)
        if self.manifest(name) != content:
            raise StoreError("it has another manifest than the one that was pushed")
        return noted

    def stream(self, blob: Blob, begun: int = 0) -> Iterator[bytes]:
        """Return a blob from a byte on, resumed after an interruption; the caller checks its
        digest.

        Raises:
            StoreError: the blob does not exist, or has another size.
        """
        return resumed(lambda done: self._body(blob, begun + done), blob.size - begun)

    def attached(self, content: Digest) -> tuple[Descriptor, ...]:
        """List the manifests that refer to a manifest.

        Raises:
            StoreError: the registry does not answer, or its list does not end.
            Damaged: as `artifact.read_index`.
        """
        place: str | None = f"{self._base}/referrers/{content}"
        referrers: tuple[Descriptor, ...] = ()
        for _ in range(_PAGES):
            if place is None:
                return referrers
            page = self._page(place)
            if page is None:
                listed = self.manifest(artifact.fallback(content))
                return () if listed is None else artifact.read_index(listed)
            referrers += page[0]
            place = page[1]
        raise StoreError("its list of referrers does not end")

    def upload(
        self, blob: Blob, source: Path | bytes, sent: Callable[[int], None], mount: str | None
    ) -> Came:
        """Upload a blob unless it exists, and return how it came into the repository.

        Args:
            sent: called with the number of bytes that were sent so far.
            mount: repository of the same registry from which to take the blob, if it has it.

        Raises:
            StoreError: the registry refuses it.
            OSError: the file cannot be read.
        """

        def attempt() -> Came:
            if self._has(blob):
                return "there"
            return self._uploaded(blob, source, sent, mount)

        return repeatedly(attempt)

    def _has(self, blob: Blob) -> bool:
        try:
            with self._request("HEAD", self._blob(blob)) as answer:
                return answer.headers.get("Content-Length", str(blob.size)) == str(blob.size)
        except Absent:
            return False

    def _blob(self, blob: Blob) -> str:
        return f"{self._base}/blobs/{blob.digest}"

    def _read(self, place: str, headers: Mapping[str, str]) -> bytes | None:
        most = limits.REGISTRY_MANIFEST_BYTES.value

        def attempt() -> bytes:
            with self._followed(place, size=0, headers=headers) as answer:
                return client.read_all(answer, most)

        try:
            return repeatedly(attempt)
        except Absent:
            return None

    def _page(self, place: str) -> tuple[tuple[Descriptor, ...], str | None] | None:
        """Read a page of referrers and the URL of the next; None without a Referrers API."""
        most = limits.REGISTRY_MANIFEST_BYTES.value

        def attempt() -> tuple[tuple[Descriptor, ...], str | None] | None:
            with self._request("GET", place, accepted=_NO_REFERRERS) as answer:
                kind = answer.headers.get("Content-Type", "").partition(";")[0]
                if answer.status_code in _NO_REFERRERS or kind != artifact.INDEX:
                    return None
                listed = artifact.read_index(client.read_all(answer, most))
                following = _NEXT.search(answer.headers.get("Link", ""))
                return listed, self._own(place, following[1]) if following else None

        return repeatedly(attempt)

    def _own(self, place: str, link: str) -> str:
        """Resolve a link that has to stay in the registry."""
        target = _joined(place, link)
        if not target.startswith(f"{self._root}/"):
            raise StoreError("it links to another host", lasting=True)
        return target

    def _body(self, blob: Blob, done: int) -> Iterator[bytes]:
        headers = {"Range": f"bytes={done}-"} if done else {}
        with self._followed(self._blob(blob), size=blob.size, headers=headers) as answer:
            yield from client.blob_pieces(answer, blob.size, done)

    @contextlib.contextmanager
    def _followed(
        self, place: str, *, size: int, headers: Mapping[str, str]
    ) -> Iterator[requests.Response]:
        """Send a GET and follow redirects; no credentials go to another host."""
        for _ in range(_HOPS):
            with self._request(
                "GET", place, size=size, headers=headers, accepted=_REDIRECTS
            ) as answer:
                if answer.status_code not in _REDIRECTS:
                    yield answer
                    return
                place = self._elsewhere(_joined(place, answer.headers.get("Location", "")))
        raise StoreError("it redirects without end", lasting=True)

    def _elsewhere(self, place: str) -> str:
        """Return the target of a redirect, if a request may go there."""
        parts = urlsplit(place)
        if parts.hostname and (
            parts.scheme == "https" or (self._insecure and parts.scheme == "http")
        ):
            return place
        raise StoreError("it redirects to an unsafe address", lasting=True)

    @contextlib.contextmanager
    def _request(
        self,
        method: str,
        place: str,
        *,
        size: int = 0,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        accepted: frozenset[int] = frozenset(),
    ) -> Iterator[requests.Response]:
        """Send a request, and once more with credentials if the registry wants them.

        See `HttpClient.request`.
        """

        def send(header: str, also: frozenset[int]) -> AbstractContextManager[requests.Response]:
            return self._client.request(
                method,
                place,
                auth=Header(header),
                size=size,
                headers=headers,
                data=data,
                accepted=accepted | also,
            )

        if not place.startswith(f"{self._root}/"):
            with send("", frozenset()) as answer:
                yield answer
            return
        header = self._access.header
        with send(header, _UNAUTHORIZED) as answer:
            if answer.status_code not in _UNAUTHORIZED:
                yield answer
                return
            challenge = answer.headers.get("WWW-Authenticate", "")
        self._access.renew(header, challenge)
        with send(self._access.header, frozenset()) as answer:
            yield answer

    def _uploaded(
        self, blob: Blob, source: Path | bytes, sent: Callable[[int], None], mount: str | None
    ) -> Came:
        query = f"?{urlencode({'mount': str(blob.digest), 'from': mount})}" if mount else ""
        with self._request("POST", f"{self._base}/blobs/uploads/{query}", data=b"") as answer:
            if mount and answer.status_code == requests.codes.created:
                return "mounted"
            place = self._upload_place(f"{self._base}/blobs/uploads/", answer)
            least = answer.headers.get("OCI-Chunk-Min-Length", "")
        chunk = max(CHUNK, int(least[:12]) if least.isdecimal() else 0)
        if isinstance(source, bytes):
            self._finish(place, blob, source)
        else:
            with source.open("rb") as stream:
                self._send(place, blob, stream, chunk, sent)
        return "sent"

    def _send(
        self,
        place: str,
        blob: Blob,
        stream: BinaryIO,
        chunk: int,
        sent: Callable[[int], None],
    ) -> None:
        """Send a file in pieces; after a failure, continue where the registry stopped."""
        done, failed = 0, 0
        while blob.size - done > chunk:
            stream.seek(done)
            piece = stream.read(chunk)
            try:
                place, end = self._patched(place, done, piece)
            except _LostUpload:
                raise
            except Passing:
                failed += 1
                if failed >= limits.REMOTE_ATTEMPTS.value:
                    raise
                place, end = repeatedly(partial(self._stopped, place))
            if not done <= end <= done + len(piece):
                raise StoreError("it reports other bytes than were sent")
            failed = 0 if end > done else failed
            done = end
            sent(done)
        stream.seek(done)
        self._finish(place, blob, stream.read(blob.size - done + 1))
        sent(blob.size)

    def _patched(self, place: str, done: int, piece: bytes) -> tuple[str, int]:
        span = {"Content-Range": f"{done}-{done + len(piece) - 1}", **_BYTES}
        with self._request(
            "PATCH", place, size=len(piece), headers=span, data=piece, accepted=_LOST
        ) as answer:
            if answer.status_code in _LOST:
                raise _LostUpload("it does not continue an upload")
            return self._upload_place(place, answer), _end(answer)

    def _stopped(self, place: str) -> tuple[str, int]:
        """Return the URL where an upload continues, and its next byte."""
        with self._request("GET", place, accepted=_LOST) as answer:
            if answer.status_code in _LOST:
                raise _LostUpload("it does not continue an upload")
            return self._upload_place(place, answer), _end(answer)

    def _upload_place(self, place: str, answer: requests.Response) -> str:
        """Return the URL for the rest of an upload; another host gets no token."""
        return self._elsewhere(_joined(place, answer.headers.get("Location", "")))

    def _finish(self, place: str, blob: Blob, content: bytes) -> None:
        joint = "&" if urlsplit(place).query else "?"
        place = f"{place}{joint}{urlencode({'digest': str(blob.digest)})}"
        with self._request(
            "PUT", place, size=len(content), headers=_BYTES, data=content, accepted=_LOST
        ) as answer:
            if answer.status_code in _LOST:
                raise _LostUpload("it does not continue an upload")


def _joined(place: str, link: str) -> str:
    """Resolve a link of an answer. Raises StoreError if the link is invalid."""
    try:
        return urljoin(place, link)
    except ValueError:
        raise StoreError("it names an invalid address", lasting=True) from None


def _end(answer: requests.Response) -> int:
    """Return how many bytes of an upload a registry has; the range in its answer ends there."""
    last = answer.headers.get("Range", "").rpartition("-")[2]
    if not (last.isdecimal() and len(last) < 16):
        raise StoreError("it does not report how much of an upload it has")
    return int(last) + 1 if int(last) else 0  # `0-0` also means no bytes
