"""What runs and can be ended from any thread, as can what is to come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from epctx.errors import EpctxError

T = TypeVar("T")


class Cancelling(Generic[T]):
    """Knows what runs, for whoever ends it. Thread-safe.

    Args:
        end: ends one that runs, for a reason; it must not wait.

    Attributes:
        reason: why nothing is to run any more; None: it may.
    """

    def __init__(self, end: Callable[[T, EpctxError], None]) -> None:
        self.reason: EpctxError | None = None
        self._end = end
        self._lock = threading.Lock()
        self._running: list[T] = []

    def cancel(self, reason: EpctxError) -> None:
        """End all that runs; what is to come raises the first reason that was given."""
        with self._lock:
            self.reason = self.reason or reason
            for each in self._running:
                self._end(each, self.reason)

    def refuse(self) -> None:
        """Raise the reason, if it was cancelled."""
        if self.reason is not None:
            raise self.reason

    @contextmanager
    def running(self, begin: Callable[[], T]) -> Iterator[T]:
        """Inside, what `begin` returns runs. Raises the reason, if it was cancelled before."""
        with self._lock:
            self.refuse()
            began = begin()
            self._running.append(began)
        try:
            yield began
        finally:
            with self._lock:
                self._running.remove(began)
