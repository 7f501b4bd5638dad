"""A proxy before a server of a shared cache or a registry, with one fault at a time."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from msgspec import Struct

READS: Final = frozenset({"GET"})
WRITES: Final = frozenset({"PUT", "POST", "PATCH"})
ALL: Final = frozenset({"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "PROPFIND", "MKCOL"})
_DROPPED: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


class Answer(Struct):
    """What the server answered."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    length: int | None
    """Of the body, as it is told; None: it is not told, and the body comes in chunks."""


class Fault(Struct, frozen=True, kw_only=True):
    """What goes wrong.

    Attributes:
        name: in the table.
        of: the methods of which it goes wrong.
        times: it goes wrong so often, and then no more.
        before: instead of asking the server.
        change: of its answer.
        send: instead of sending the answer as it is.
    """

    name: str
    of: frozenset[str] = READS
    times: int = 1_000_000
    before: Callable[[Handler], None] | None = None
    change: Callable[[Answer], None] | None = None
    send: Callable[[Handler, Answer], None] | None = None


class Proxy(ThreadingHTTPServer):
    """Listens at a port of loopback while it is in a `with`.

    Attributes:
        upstream: the server's port.
        fault: what goes wrong; None: nothing.
        seen: the methods, in order.
    """

    daemon_threads = True
    fault: Fault | None = None

    def __init__(self, upstream: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream, self.seen, self._left = upstream, list[str](), 0
        self._lock, self.over = threading.Lock(), threading.Event()

    def begin(self, fault: Fault | None) -> None:
        """From now on this goes wrong."""
        self.fault, self.seen = fault, []
        self._left = fault.times if fault else 0

    def due(self, method: str) -> Fault | None:
        """What goes wrong with this request."""
        with self._lock:
            self.seen.append(method)
            if self.fault is None or method not in self.fault.of or self._left == 0:
                return None
            self._left -= 1
            return self.fault

    def handle_error(self, *of: object) -> None:
        """A client that goes away is none."""


@contextlib.contextmanager
def before(port: int) -> Iterator[Proxy]:
    """A proxy before the server at a port."""
    with Proxy(port) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.over.set()
            proxy.shutdown()


class Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def _handle(self) -> None:
        fault = self.server.due(self.command)
        if fault is not None and fault.before is not None:
            fault.before(self)
            return
        answer = self.ask()
        if fault is not None and fault.change is not None:
            fault.change(answer)
        (fault.send if fault is not None and fault.send is not None else Handler.tell)(self, answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_PROPFIND = do_MKCOL = _handle

    def body(self) -> bytes:
        """What the client sends."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def ask(self) -> Answer:
        """What the server answers."""
        headers = {name: text for name, text in self.headers.items() if name != "Connection"}
        asked = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=300)
        with contextlib.closing(asked):
            asked.request(self.command, self.path, self.body(), headers)
            answer = asked.getresponse()
            told = answer.getheader("Content-Length")
            body = answer.read()
        kept = [each for each in answer.getheaders() if each[0].lower() not in _DROPPED]
        head = self.command == "HEAD"
        return Answer(answer.status, kept, body, int(told or 0) if head else len(body))

    def head(self, answer: Answer) -> None:
        """The answer's headers."""
        self.send_response_only(answer.status)
        for name, text in answer.headers:
            self.send_header(name, text)
        if answer.length is None:
            self.send_header("Transfer-Encoding", "chunked")
        elif answer.status != http.HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(answer.length))
        self.end_headers()

    def tell(self, answer: Answer) -> None:
        """The answer as it is; a body that is not as long as told ends the connection."""
        self.head(answer)
        if self.command != "HEAD":
            self.wfile.write(answer.body)
            self.close_connection = answer.length != len(answer.body)

    def cut(self) -> None:
        """End the connection at once."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *of: object) -> None:
        """Of no use."""


def status(code: int, *headers: tuple[str, str]) -> Callable[[Handler], None]:
    """Answer this, with a body that tells secrets, as some servers do."""

    def answer(handler: Handler) -> None:
        handler.body()
        body = f"<Error>{handler.headers.get('Authorization')}</Error>".encode()
        handler.tell(Answer(code, list(headers), body, len(body)))

    return answer


def unanswered(handler: Handler) -> None:
    """The connection ends before an answer."""
    handler.cut()


def silent(handler: Handler) -> None:
    """Nothing comes."""
    handler.server.over.wait()
    handler.cut()


def garbage(handler: Handler) -> None:
    """What is no HTTP comes."""
    handler.body()
    handler.wfile.write(bytes(range(256)) * 8)
    handler.cut()


def cut_body(handler: Handler, answer: Answer) -> None:
    """A third of the body comes."""
    handler.head(answer)
    handler.wfile.write(answer.body[: len(answer.body) // 3])
    handler.cut()


def stalled_body(handler: Handler, answer: Answer) -> None:
    """A third of the body comes, and then nothing."""
    handler.head(answer)
    handler.wfile.write(answer.body[: len(answer.body) // 3])
    silent(handler)


def dripping_body(handler: Handler, answer: Answer) -> None:
    """Byte after byte comes, steadily."""
    handler.head(answer)
    for each in answer.body:
        if handler.server.over.wait(0.2):
            break
        handler.wfile.write(bytes((each,)))
    handler.cut()


def dripping_head(handler: Handler, answer: Answer) -> None:
    """Headers without end, byte after byte."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while not handler.server.over.wait(0.2):
        handler.wfile.write(b"x")
    handler.cut()


def endless_body(handler: Handler, answer: Answer) -> None:
    """The body comes again and again, for ten gigabytes or until nobody listens."""
    answer.length = None
    handler.head(answer)
    _repeat(handler, b"100000\r\n%b\r\n" % (answer.body[:1] * (1 << 20)))


def long_body(handler: Handler, answer: Answer) -> None:
    """The same, with a length that says so."""
    answer.length = 10 << 30
    handler.head(answer)
    _repeat(handler, answer.body[:1] * (1 << 20))


def _repeat(handler: Handler, piece: bytes) -> None:
    until = time.monotonic() + 20
    for _ in range(10 << 10):
        handler.wfile.write(piece)
        if time.monotonic() > until:
            break
    handler.cut()


def lost(handler: Handler, answer: Answer) -> None:
    """The server did it, and its answer is lost."""
    handler.cut()


def shorter(answer: Answer) -> None:
    """A third of the body, and it says so."""
    answer.body = answer.body[: len(answer.body) // 3]
    answer.length = len(answer.body)


def twice(answer: Answer) -> None:
    """The body twice, and it says so."""
    answer.body *= 2
    answer.length = len(answer.body)


def told_longer(answer: Answer) -> None:
    """It says that there is more than comes."""
    answer.length = len(answer.body) + 1000


def told_shorter(answer: Answer) -> None:
    """It says that there is less than comes."""
    answer.length = len(answer.body) - 1000


def no_number(answer: Answer) -> None:
    """It says how long it is in no number."""
    answer.headers.append(("Content-Length", "-7"))


def flipped(answer: Answer) -> None:
    """A bit of the body is another."""
    answer.body = bytes((answer.body[0] ^ 1,)) + answer.body[1:]


def elsewhere(answer: Answer) -> None:
    """It is another part of the blob than the one asked for."""
    answer.status = 206
    answer.headers = [each for each in answer.headers if each[0].lower() != "content-range"]
    answer.headers.append(("Content-Range", f"bytes 7-{6 + len(answer.body)}/1000000"))


def packed(answer: Answer) -> None:
    """It says that it is compressed, and is not."""
    answer.headers.append(("Content-Encoding", "gzip"))
