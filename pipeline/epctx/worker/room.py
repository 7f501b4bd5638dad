"""Admission of jobs by the memory that is free on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


class Room:
    """The memory that is free, shared by jobs that run models. Used by many threads.

    One may always run, however large it is.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: list[int] = []
        self._free = 0

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Wait until so many bytes are free beside those that others are known to need."""
        with self._changed:
            while self._running and size > self._left():
                self._changed.wait(timeout=1.0)
            if not self._running:
                self._free = _available()
            self._running.append(size)
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(size)
                self._changed.notify_all()

    def _left(self) -> int:
        if not self._running:
            return _available()
        return min(_available(), self._free - sum(self._running))


def _available() -> int:
    return int(psutil.virtual_memory().available)
