"""Daemon threads, so that a store that never answers does not keep the process alive."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

R = TypeVar("R")
V = TypeVar("V")
_STEP = 0.1
_IDLE = 1.0
"""Seconds that a thread waits for the next call."""


class Threads:
    """A few threads that take calls in order; a thread without calls ends after a while."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = self._open = 0

    def submit(self, call: Callable[[], R]) -> Future[R]:
        """Queue a call; return the future of its result."""
        future: Future[R] = Future()

        def carry_out() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        with self._lock:
            self._open += 1
            self._calls.put(carry_out)
            if self._open > self._started < self._most:
                self._started += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    if self._calls.empty():
                        self._started -= 1
                        return
                continue
            call()
            with self._lock:
                self._open -= 1


def beside(call: Callable[[V], R], values: Iterable[V], most: int) -> list[R]:
    """Call a function for each value, `most` at a time; an interrupt ends the wait at once."""
    threads = Threads(most, "epctx-beside")
    futures = [threads.submit(partial(call, value)) for value in values]
    return [wait(future, until=math.inf, proceed=lambda: None) for future in futures]


def wait(future: Future[R], *, until: float, proceed: Callable[[], None]) -> R:
    """Wait for the result of a call.

    Args:
        until: time of `time.monotonic` at which the wait ends.
        proceed: called repeatedly; an exception that it raises ends the wait.

    Raises:
        TimeoutError: the call has no result at `until`.
    """
    while True:
        try:
            return future.result(min(_STEP, max(0.0, until - time.monotonic())))
        except TimeoutError:
            if future.done() or time.monotonic() >= until:
                raise
            proceed()
