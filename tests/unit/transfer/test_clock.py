"""A request ends in time, also where single bytes come steadily."""

import contextlib
import socket
import threading
import time

import pytest
import requests

from epctx.transfer import clock


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
        began = time.monotonic()
        with requests.Session() as session:
            session.mount("http://", clock.Adapter())
            with pytest.raises(TimeoutError), clock.running(0.3):
                _ = session.get(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout=5)
        assert 0.25 < time.monotonic() - began < 5
        over.set()


def _clocks() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if isinstance(each, threading.Timer)}


def test_what_is_quick_has_no_clock_any_more() -> None:
    before = _clocks()
    with clock.running(60) as allow:
        allow(60)
        own = _clocks() - before
        assert own
    for each in own:
        each.join(10)
        assert not each.is_alive()


def test_time_begins_anew() -> None:
    """As for a body whose head has come."""
    with clock.running(0.5) as allow:
        allow(60)
        time.sleep(0.8)
    with pytest.raises(TimeoutError), clock.running(60) as allow:
        allow(0.1)
        time.sleep(0.5)
