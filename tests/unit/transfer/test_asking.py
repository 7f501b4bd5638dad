"""What answers say of waits and parts. Servers: tests/faults/test_stores.py, test_registry.py."""

import contextlib
import socket
import threading
import time
from email.utils import formatdate

import pytest
import requests

from epctx.transfer import asking
from epctx.transfer.attempts import Passing, StoreError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 0), ("7", 7), ("soon", 0), ("-3", 0), (formatdate(0, usegmt=True), 0)],
)
def test_retry_after(text: str, seconds: float) -> None:
    assert asking._after(text) == seconds
    assert 50 < asking._after(formatdate(time.time() + 60, usegmt=True)) <= 60


@pytest.mark.parametrize("span", ["bytes 5-9/11", "bytes 5-9/*", "5", "", "bytes x-9/10"])
def test_a_part_of_something_else_is_none(span: str) -> None:
    answer = requests.Response()
    answer.status_code = 206
    answer.headers["Content-Range"] = span
    with pytest.raises(StoreError, match="a part that was not asked for"):
        asking._start(answer, 10)


def test_headers_have_no_time_of_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is to come: who drips a header has as long as for nothing."""
    monkeypatch.setenv("EPCTX_LIMIT_REMOTE_SECONDS", "1")
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not over.wait(0.05):
                    connection.sendall(b"x")

        threading.Thread(target=drip, daemon=True).start()
        place, began = f"http://127.0.0.1:{server.getsockname()[1]}/", time.monotonic()
        with (
            pytest.raises(Passing, match=r"does not answer in time|breaks off"),
            asking.Asking().asked("GET", place, auth=None, size=1 << 19),
        ):
            pass
        assert time.monotonic() - began < 20
        over.set()
