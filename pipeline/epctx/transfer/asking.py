"""One attempt at a request of HTTP, bounded in time; what goes wrong is told in words of ours.

Redirects are not followed by themselves: whoever asks says where credentials may go.
"""

from __future__ import annotations

import contextlib
import http
import time
from collections.abc import Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from threading import local
from typing import BinaryIO, Final

import requests
from requests.auth import AuthBase
from urllib3.exceptions import HTTPError

from epctx import limits
from epctx.transfer import clock
from epctx.transfer.attempts import Passing, StoreError, seconds_for

PIECE: Final = 1 << 20
"""Bytes that are taken of a body at a time."""
_STORED_A_SECOND: Final = 16 << 20
"""What a server is given time for between the last byte that it gets and its answer."""
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_REFUSED: Final = frozenset({401, 403, 407})
_ABSENT: Final = frozenset({404, 410})


class Absent(StoreError):
    """There is nothing of that name, or not any more."""

    def __init__(self) -> None:
        super().__init__("it has nothing of that name")


class Asking:
    """Asks servers. Thread-safe: each thread has a session of its own, which may not be shared."""

    def __init__(self) -> None:
        self._of_thread = local()

    @property
    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._of_thread, "session", None)
        if session is None:
            session = self._of_thread.session = requests.Session()
            for scheme in ("http://", "https://"):
                session.mount(scheme, clock.Adapter())
        return session

    @contextlib.contextmanager
    def asked(
        self,
        method: str,
        place: str,
        *,
        auth: AuthBase | None,
        size: int = 0,
        headers: Mapping[str, str] | None = None,
        data: bytes | BinaryIO | None = None,
        taken: frozenset[int] = frozenset(),
    ) -> Iterator[requests.Response]:
        """One attempt at a request, and its answer.

        Args:
            method: of HTTP.
            place: its URL.
            auth: puts credentials into it; None: those that ~/.netrc has for the host.
            size: about so many bytes are to go, or, where nothing is sent, to come.
            headers: besides the usual ones.
            data: what is sent.
            taken: what it may answer though that is no success.

        Raises:
            StoreError: it answers anything else, or not at all.
        """
        sent = size if data else 0
        stall = limits.REMOTE_STALL_SECONDS.value + sent / _STORED_A_SECOND
        waits = (limits.REMOTE_CONNECT_SECONDS.value, stall)
        with telling(), clock.running(seconds_for(sent)) as allow:
            answer = self._session.request(
                method,
                place,
                headers={"Accept-Encoding": "identity", **(headers or {})},
                data=data,
                auth=auth,
                timeout=waits,
                allow_redirects=False,
                stream=True,
            )
            with answer:
                allow(seconds_for(size))
                if answer.status_code not in taken:
                    _judge(answer)
                yield answer


def whole(answer: requests.Response, most: int) -> bytes:
    """A small body. Raises StoreError where it has more than `most` bytes."""
    return b"".join(bounded(answer.raw.stream(PIECE, decode_content=False), most))


def bounded(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Pieces, as long as they have no more than `most` bytes. Raises StoreError."""
    for piece in pieces:
        most -= len(piece)
        if most < 0:
            raise StoreError("it sends more than there may be")
        yield piece


def body(answer: requests.Response, size: int, done: int) -> Iterator[bytes]:
    """The bytes of a blob from some byte on, whatever part of it the server sends.

    First b"", when it is known to be that blob. Raises StoreError where it is not.
    """
    skipped = done - _start(answer, size)
    yield b""
    for piece in answer.raw.stream(PIECE, decode_content=False):
        yield piece[skipped:]
        skipped = max(0, skipped - len(piece))


def _judge(answer: requests.Response) -> None:
    """Raises StoreError where an answer is no success."""
    status = answer.status_code
    if status in _ABSENT:
        raise Absent
    if 300 <= status < 400:
        raise StoreError("it redirects elsewhere, which is not followed", lasting=True)
    known = status in http.HTTPStatus._value2member_map_
    words = f"it answers {status}{f' {http.HTTPStatus(status).phrase}' if known else ''}"
    if status in _PASSING:
        raise Passing(words, after=_after(answer.headers.get("Retry-After", "")))
    if not 200 <= status < 300:
        raise StoreError(words, lasting=status in _REFUSED)


def _after(text: str) -> float:
    """The seconds that `Retry-After` says, as a number or a date."""
    if text.isdecimal():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return 0.0


def _start(answer: requests.Response, size: int) -> int:
    """The first byte that an answer has of a blob. Raises StoreError where it is not that blob."""
    if answer.status_code == http.HTTPStatus.PARTIAL_CONTENT:
        span, _, total = answer.headers.get("Content-Range", "").partition("/")
        start = span.removeprefix("bytes ").partition("-")[0]
        if total == str(size) and start.isdecimal():
            return int(start)
        raise StoreError("it sends a part that was not asked for")
    length = answer.headers.get("Content-Length", str(size))
    if length != str(size):
        raise StoreError(f"it has {length[:20]} bytes of the {size:,} of a blob")
    return 0


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """What requests raises is a StoreError, in words of ours: its own have URLs and headers."""
    try:
        yield
    except requests.exceptions.SSLError as error:
        plain = "WRONG_VERSION_NUMBER" in str(error) or "record layer" in str(error)
        words = "it does not speak TLS" if plain else "its certificate is not accepted"
        raise StoreError(words, lasting=True) from None
    except requests.Timeout:
        raise Passing("it does not answer in time") from None
    except (HTTPError, HTTPException, OSError):
        raise Passing("it cannot be reached, or breaks off") from None
