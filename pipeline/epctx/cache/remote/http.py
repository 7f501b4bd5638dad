"""A store that speaks HTTP: WebDAV, nginx and the like, or bazel-remote.

Redirects are not followed, so all requests stay with this server. Credentials are a bearer token or
the entry of ~/.netrc for the host. Listings are those of WebDAV: RFC 4918, PROPFIND.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import requests

from epctx import limits
from epctx.cache.remote.store import Stored, checked, holds, is_name
from epctx.transfer import client
from epctx.transfer.attempts import StoreError, repeatedly, resumed
from epctx.transfer.client import Absent, Header, HttpClient

_PROPERTIES: Final = (
    b'<?xml version="1.0"?><propfind xmlns="DAV:"><prop>'
    b"<getcontentlength/><getlastmodified/></prop></propfind>"
)
"""Body of a PROPFIND request."""
_ENTRY_BYTES: Final = 1 << 10


def most_listing_bytes() -> int:
    """Return the greatest length of a listing in bytes."""
    return limits.REMOTE_NAMES.value * _ENTRY_BYTES


def listed_blobs(pieces: Iterable[bytes], folder: str) -> Iterator[Stored]:
    """Yield the blobs of a folder. Only the last part of each path in the listing is used.

    Raises:
        StoreError: the answer is not a listing, or lists too many blobs.
    """
    try:
        for count, element in enumerate(_responses(pieces)):
            if count > limits.REMOTE_NAMES.value:
                raise StoreError(f"it lists more than {limits.REMOTE_NAMES}")
            name = f"{folder}/{_text(element, 'href').rpartition('/')[2]}"
            if is_name(name):
                yield _stored(name, element)
    except (ET.ParseError, ValueError):
        raise StoreError("its listing cannot be read") from None


def _responses(pieces: Iterable[bytes]) -> Iterator[ET.Element]:
    root: list[ET.Element] = []
    parser: ET.XMLPullParser[Any] = ET.XMLPullParser(("start", "end"))
    for piece in pieces:
        parser.feed(piece)
        for event, element in cast("Iterator[tuple[str, ET.Element]]", parser.read_events()):
            if event == "start":
                root = root or [element]
            elif element.tag == "{DAV:}response":
                yield element
                root[0].clear()
    parser.close()


def _stored(name: str, element: ET.Element) -> Stored:
    modified = parsedate_to_datetime(_text(element, "getlastmodified")).timestamp()
    return Stored(name=name, size=int(_text(element, "getcontentlength")), modified=modified)


def _text(element: ET.Element, tag: str) -> str:
    return element.findtext(f".//{{DAV:}}{tag}", "").strip()


_NO_FOLDER: Final = frozenset({404, 409})
_NO_METHOD: Final = frozenset({400, 405, 501})
_EXISTS: Final = 412
_FOLDERS: Final = ("v1/objects", "v1/actions")


class HttpStore:
    """A store in a folder of an HTTP server. Thread-safe."""

    def __init__(self, url: str, *, base: str, token: str | None, bazel: bool) -> None:
        """Send no request yet.

        Args:
            url: URL as the user gave it.
            base: prefix of each blob's URL; begins with `http`.
            token: bearer token to send.
            bazel: the server is bazel-remote. It accepts only names of `ac/` and a SHA-256, so the
                SHA-256 of a blob's name is used. Its `cas/` is not used, since it names content by
                SHA-256, and epctx by BLAKE3.
        """
        self._url, self._base, self._bazel = url, base.rstrip("/"), bazel
        self._auth = Header(f"Bearer {token}") if token else None
        self._client = HttpClient()

    @property
    def url(self) -> str:
        """URL as the user gave it."""
        return self._url

    def read(self, name: str, most: int) -> bytes | None:
        """See `Store`."""
        return repeatedly(lambda: self._whole(name, most))

    def stream(self, name: str, size: int) -> Iterator[bytes] | None:
        """See `Store`."""
        try:
            first = iter([repeatedly(lambda: self._begun(name, size))])
        except Absent:
            return None
        return resumed(lambda done: next(first, None) or self._body(name, size, done), size)

    def size(self, name: str) -> int | None:
        """See `Store`."""
        try:
            return self._length("HEAD", name) or self._length("GET", name)
        except Absent:
            return None

    def write(self, name: str, content: bytes) -> None:
        """See `Store`."""
        if not self._put(name, content, {"If-None-Match": "*"}) and not holds(self, name, content):
            self._put(name, content)

    def upload(self, name: str, source: Path) -> None:
        """See `Store`."""
        with client.translated_errors():
            size = source.stat().st_size
        if self.size(name) != size:
            self._put(name, source)

    def list(self, prefix: str) -> Iterator[Stored]:
        """See `Store`."""
        folder = prefix.rpartition("/")[0]
        for below in _FOLDERS:
            if below.startswith(folder):
                for each in self._listed(below):
                    if each.name.startswith(prefix):
                        yield each

    def delete(self, names: Iterable[str]) -> None:
        """See `Store`."""
        for name in names:
            with contextlib.suppress(Absent):
                self._status("DELETE", self._place(name))

    def _place(self, name: str) -> str:
        if self._bazel:
            return f"{self._base}/ac/{hashlib.sha256(checked(name).encode()).hexdigest()}"
        return f"{self._base}/{checked(name)}"

    def _request(
        self,
        method: str,
        place: str,
        *,
        size: int = 0,
        headers: Mapping[str, str] | None = None,
        data: bytes | BinaryIO | None = None,
        accepted: frozenset[int] = frozenset(),
    ) -> AbstractContextManager[requests.Response]:
        """Send a request with the credentials; see `HttpClient.request`."""
        return self._client.request(
            method, place, auth=self._auth, size=size, headers=headers, data=data, accepted=accepted
        )

    def _status(self, method: str, place: str, accepted: frozenset[int] = frozenset()) -> int:
        def attempt() -> int:
            with self._request(method, place, accepted=accepted) as answer:
                return answer.status_code

        return repeatedly(attempt)

    def _length(self, method: str, name: str) -> int | None:
        """Return the length in an answer's header; a proxy may report 0 for HEAD."""

        def attempt() -> int | None:
            with self._request(method, self._place(name)) as answer:
                length = answer.headers.get("Content-Length", "")
                return int(length) if length.isdecimal() else None

        return repeatedly(attempt)

    def _whole(self, name: str, most: int) -> bytes | None:
        try:
            with self._request("GET", self._place(name), size=most) as answer:
                return client.read_all(answer, most)
        except Absent:
            return None

    def _begun(self, name: str, size: int) -> Iterator[bytes]:
        """Request a blob, and return its bytes once the answer shows that it exists."""
        body = self._body(name, size, 0)
        next(body)
        return body

    def _body(self, name: str, size: int, done: int) -> Iterator[bytes]:
        """Request a blob once, from byte `done` on; yield b"" first, when the answer has begun."""
        headers = {"Range": f"bytes={done}-"} if done else {}
        with self._request("GET", self._place(name), size=size, headers=headers) as answer:
            yield from client.blob_pieces(answer, size, done)

    def _put(
        self, name: str, content: bytes | Path, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Send a blob, and make the folders that it needs; return False if it exists already."""
        status = repeatedly(lambda: self._sent(name, content, headers))
        if status in _NO_FOLDER:
            self._make_folders(name)
            status = repeatedly(lambda: self._sent(name, content, headers))
        if status in _NO_FOLDER:
            raise StoreError(f"it answers {status} and refuses to make a folder")
        return status != _EXISTS

    def _sent(self, name: str, content: bytes | Path, headers: Mapping[str, str] | None) -> int:
        place, accepted = self._place(name), _NO_FOLDER | ({_EXISTS} if headers else set())
        with client.translated_errors(), contextlib.ExitStack() as stack:
            data: bytes | BinaryIO
            if isinstance(content, bytes):
                data, size = content, len(content)
            else:
                data, size = stack.enter_context(content.open("rb")), content.stat().st_size
            data = data if size else b""  # for an empty file, `requests` would not send the length
            request = self._request(
                "PUT", place, size=size, headers=headers, data=data, accepted=accepted
            )
            return stack.enter_context(request).status_code

    def _make_folders(self, name: str) -> None:
        """Make the folders of a blob. The next attempt to send the blob reports errors."""
        root, _, path = self._place(name).partition("://")[2].partition("/")
        begin = self._base.partition("://")[0]
        folders = itertools.accumulate(path.split("/")[:-1], "{}/{}".format)
        for folder in folders:
            with contextlib.suppress(StoreError):
                self._status("MKCOL", f"{begin}://{root}/{folder}/")

    def _listed(self, folder: str) -> Iterable[Stored]:
        def attempt() -> tuple[Stored, ...]:
            with self._request(
                "PROPFIND",
                f"{self._base}/{folder}/",
                size=most_listing_bytes(),
                headers={"Depth": "1", "Content-Type": "application/xml"},
                data=_PROPERTIES,
                accepted=_NO_METHOD,
            ) as answer:
                if answer.status_code in _NO_METHOD:
                    raise StoreError("it cannot list its blobs: it does not support WebDAV")
                pieces = client.bounded(answer.raw.stream(client.PIECE), most_listing_bytes())
                return tuple(listed_blobs(pieces, folder))

        try:
            return repeatedly(attempt)
        except Absent:
            return ()
