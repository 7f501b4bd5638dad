"""Requests that end in time, however steadily single bytes come or go.

What `requests` calls a timeout is the wait for the next byte.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from msgspec import Struct
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection


class _Request(Struct):
    socket: socket.socket | None = None
    over: bool = False
    timer: threading.Timer | None = None

    def begin(self, seconds: float) -> None:
        """So many seconds from now on, whatever was said before."""
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
    """One request, and its answer's body: after so many seconds its connection breaks.

    What is given begins them anew, as many as it is told: for the body, once its head is there.

    Raises:
        TimeoutError: it did; what came may look whole.
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
    """Of sessions whose requests are made while `running`."""

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
