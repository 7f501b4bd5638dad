"""Admission of jobs by the memory that is free on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psutil

from epctx.error_codes import Code
from epctx.errors import CompileError
from epctx.text import size_words

_TOO_HIGH: Final = 1.25
"""Estimates may exceed the memory that a job takes by this factor."""
_SHARE: Final = 4
"""Number of pieces of the proposed size that fit into memory at the same time."""


class MemoryBudget:
    """Free memory of this machine, shared by jobs. Thread-safe.

    A job that fits into this machine's memory may always run when no other job runs.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: list[int] = []
        self._free = 0

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        """Reserve `size` bytes; wait until they are free beside those that other jobs reserved.

        Raises:
            CompileError: this machine has less memory in total, swap included.
        """
        _require(size)
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


def _require(size: int) -> None:
    machine = psutil.virtual_memory().total + psutil.swap_memory().total
    if size > _TOO_HIGH * machine:
        proposed = max(1, psutil.virtual_memory().total // _SHARE // 1_000_000_000)
        raise CompileError(
            f"it is estimated to take {size_words(size)} of memory, and this machine has "
            f"{size_words(machine)} with its swap",
            remedy=f"compile it in pieces: `partition: {{pieces: {{max_memory: {proposed}GB}}}}`; "
            "or on a larger machine",
            code=Code.OUT_OF_MEMORY,
        )


def _available() -> int:
    return int(psutil.virtual_memory().available)
