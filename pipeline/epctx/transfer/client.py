"""HTTP client: one attempt at a request, bounded in time, with errors in epctx's own words.

It follows no redirect: the caller decides where credentials may go. A timeout of `requests` limits
only the wait for the next byte. So a timer breaks the connection at the end of a request's time,
even if single bytes still come or go.
"""

from __future__ import annotations

import contextlib
import http
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any, BinaryIO, Final

import requests
from msgspec import Struct
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from epctx import limits
from epctx.transfer.attempts import Passing, StoreError, seconds_for

PIECE: Final = 1 << 20
"""Bytes of a body that are read at a time."""
_STORED_A_SECOND: Final = 16 << 20
"""Bytes of a request that a server has one more second to store before it answers."""
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_REFUSED: Final = frozenset({401, 403, 407})
_ABSENT: Final = frozenset({404, 410})


class Absent(StoreError):
    """The server does not have the requested name, or has it no longer."""

    def __init__(self) -> None:
        super().__init__("it has nothing of that name")


class Header(AuthBase):
    """`Authorization` header of a request in place of `~/.netrc`; none at all if it is empty."""

    def __init__(self, text: str = "") -> None:
        self._text = text

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """See `AuthBase`."""
        if self._text:
            request.headers["Authorization"] = self._text
        return request


class HttpClient:
    """HTTP client. Thread-safe: each thread has its own session, which may not be shared."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    @property
    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._of_thread, "session", None)
        if session is None:
            session = self._of_thread.session = requests.Session()
            for scheme in ("http://", "https://"):
                session.mount(scheme, Adapter())
        return session

    @contextlib.contextmanager
    def request(
        self,
        method: str,
        place: str,
        *,
        auth: AuthBase | None,
        size: int = 0,
        headers: Mapping[str, str] | None = None,
        data: bytes | BinaryIO | None = None,
        accepted: frozenset[int] = frozenset(),
    ) -> Iterator[requests.Response]:
        """Send one request, and yield its answer.

        Args:
            method: HTTP method.
            place: URL.
            auth: credentials; None for those of the host in ~/.netrc.
            size: bytes of the body that is sent; if nothing is sent, expected bytes of the answer.
            headers: additional headers.
            data: body that is sent.
            accepted: status codes to accept besides success.

        Raises:
            StoreError: the answer has another status code, or there is no answer.
        """
        sent = size if data else 0
        stall = limits.REMOTE_STALL_SECONDS.value + sent / _STORED_A_SECOND
        waits = (limits.REMOTE_CONNECT_SECONDS.value, stall)
        with translated_errors(), running(seconds_for(sent)) as allow:
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
                if answer.status_code not in accepted:
                    _judge(answer)
                yield answer


def read_all(answer: requests.Response, most: int) -> bytes:
    """Read a small body. Raises StoreError if it has more than `most` bytes."""
    return b"".join(bounded(answer.raw.stream(PIECE, decode_content=False), most))


def bounded(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Yield pieces. Raises StoreError as soon as they have more than `most` bytes together."""
    for piece in pieces:
        most -= len(piece)
        if most < 0:
            raise StoreError("it sends more bytes than allowed")
        yield piece


def blob_pieces(answer: requests.Response, size: int, done: int) -> Iterator[bytes]:
    """Yield the bytes of a blob from byte `done` on, even if the server sends an earlier part, too.

    The first piece is empty. It means that the answer is about a blob of `size` bytes.

    Raises:
        StoreError: the answer is about another blob.
    """
    skipped = done - _start(answer, size)
    yield b""
    for piece in answer.raw.stream(PIECE, decode_content=False):
        yield piece[skipped:]
        skipped = max(0, skipped - len(piece))


def _judge(answer: requests.Response) -> None:
    """Raise StoreError unless an answer is a success."""
    status = answer.status_code
    if status in _ABSENT:
        raise Absent
    if 300 <= status < 400:
        raise StoreError("it redirects elsewhere, and redirects are not followed", lasting=True)
    standard = status in http.HTTPStatus._value2member_map_
    words = f"it answers {status}{f' {http.HTTPStatus(status).phrase}' if standard else ''}"
    if status in _PASSING:
        raise Passing(words, after=_after(answer.headers.get("Retry-After", "")))
    if not 200 <= status < 300:
        raise StoreError(words, lasting=status in _REFUSED)


def _after(text: str) -> float:
    """Return the seconds of `Retry-After`, which is a number or a date."""
    if text.isdecimal():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return 0.0


def _start(answer: requests.Response, size: int) -> int:
    """Return the index of an answer's first byte in a blob. Raises StoreError for another blob."""
    if answer.status_code == http.HTTPStatus.PARTIAL_CONTENT:
        span, _, total = answer.headers.get("Content-Range", "").partition("/")
        start = span.removeprefix("bytes ").partition("-")[0]
        if total == str(size) and start.isdecimal():
            return int(start)
        raise StoreError("it sends a part that was not requested")
    length = answer.headers.get("Content-Length", str(size))
    if length != str(size):
        raise StoreError(f"its blob has {length[:20]} bytes, not {size:,}")
    return 0


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Turn errors of `requests` into StoreError, since their messages have URLs and headers."""
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


class _Request(Struct):
    socket: socket.socket | None = None
    over: bool = False
    timer: threading.Timer | None = None

    def begin(self, seconds: float) -> None:
        """Restart the timer."""
        self.cancel()
        self.timer = threading.Timer(seconds, self.end)
        self.timer.daemon = True
        self.timer.start()

    def cancel(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def end(self) -> None:
        self.over = True
        if self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)


_running: ContextVar[_Request] = ContextVar("running")


@contextlib.contextmanager
def running(seconds: float) -> Iterator[Callable[[float], None]]:
    """Break the connection of one request, including the body of its answer, after some seconds.

    Yields a function that restarts the timer, for the body after the head.

    Raises:
        TimeoutError: the connection was broken; the received part may look complete.
    """
    request = _Request()
    request.begin(seconds)
    _running.set(request)
    try:
        yield request.begin
    finally:
        request.cancel()
    if request.over:
        raise TimeoutError


def _send(self: HTTPConnection, data: Any) -> None:
    _running.get().socket = self.sock
    HTTPConnection.send(self, data)


def _getresponse(self: HTTPConnection) -> Any:
    _running.get().socket = self.sock
    return HTTPConnection.getresponse(self)


class _Connection(HTTPConnection):
    send = _send
    getresponse = _getresponse


class _TlsConnection(HTTPSConnection):
    send = _send
    getresponse = _getresponse


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class Adapter(HTTPAdapter):
    """Adapter of sessions whose requests are sent while `running`."""

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        """See `HTTPAdapter`."""
        super().init_poolmanager(*args, **more)
        _use(self.poolmanager)

    def proxy_manager_for(self, *args: Any, **more: Any) -> PoolManager:
        """See `HTTPAdapter`."""
        return _use(super().proxy_manager_for(*args, **more))


def _use(manager: PoolManager) -> PoolManager:
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
    return manager
