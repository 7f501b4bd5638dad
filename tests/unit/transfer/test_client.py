"""Waits and parts that answers ask for. Servers: tests/faults/test_stores.py, test_registry.py."""

import contextlib
import socket
import threading
import time
from email.utils import formatdate

import pytest
import requests

from epctx.transfer import client
from epctx.transfer.attempts import Passing, StoreError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 0), ("7", 7), ("soon", 0), ("-3", 0), (formatdate(0, usegmt=True), 0)],
)
def test_retry_after(text: str, seconds: float) -> None:
    assert client._after(text) == seconds
    assert 50 < client._after(formatdate(time.time() + 60, usegmt=True)) <= 60


@pytest.mark.parametrize("span", ["bytes 5-9/11", "bytes 5-9/*", "5", "", "bytes x-9/10"])
def test_a_part_of_something_else_is_none(span: str) -> None:
    answer = requests.Response()
    answer.status_code = 206
    answer.headers["Content-Range"] = span
    with pytest.raises(StoreError, match="a part that was not requested"):
        client._start(answer, 10)


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
        place = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with (
            pytest.raises(Passing, match=r"does not answer in time|breaks off"),
            client.HttpClient().request("GET", place, auth=None, size=1 << 19),
        ):
            pass
        over.set()


def test_a_connection_breaks_when_its_time_is_over() -> None:
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                with contextlib.suppress(OSError):
                    while not over.wait(0.05):
                        connection.sendall(b"x")

        threading.Thread(target=drip, daemon=True).start()
        with requests.Session() as session:
            session.mount("http://", client.Adapter())
            with pytest.raises(TimeoutError), client.running(0.3):
                _ = session.get(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout=5)
        over.set()


def _clocks() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if isinstance(each, threading.Timer)}


def test_what_is_quick_has_no_clock_any_more() -> None:
    before = _clocks()
    with client.running(60) as allow:
        allow(60)
        own = _clocks() - before
        assert own
    for each in own:
        each.join(10)
        assert not each.is_alive()


def test_time_begins_anew() -> None:
    """As for a body whose head has come."""
    with client.running(0.5) as allow:
        allow(60)
        time.sleep(0.8)
    with pytest.raises(TimeoutError), client.running(60) as allow:
        allow(0.1)
        time.sleep(0.5)
