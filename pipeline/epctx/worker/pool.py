"""The workers of a build: a few that take many jobs, and fresh ones for EPs that need isolation."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epctx.errors import EpctxError
from epctx.worker.process import Worker


class Pool:
    """Hands out workers, and ends them all. Thread-safe.

    Args:
        work: scratch of the build; each worker gets a folder of its own in it.
        logs: where the workers' logs go; those of workers that did well are removed.
    """

    def __init__(self, *, work: Path, logs: Path) -> None:
        self._work = work
        self._logs = logs
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._idle: list[Worker] = []
        self._fresh: dict[str, Worker] = {}
        self._alive: set[Worker] = set()
        self._ended: EpctxError | None = None

    @contextmanager
    def shared(self) -> Iterator[Worker]:
        """A worker that may have done other jobs and will be given more."""
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        worker = worker or self._start("worker")
        try:
            yield worker
        except EpctxError:
            # It may have crashed; a new one costs a second, a sick one a build.
            self._drop(worker)
            raise
        with self._lock:
            self._idle.append(worker)

    def expect(self, label: str) -> None:
        """Start a fresh worker now for a job that will need one soon: its imports take a second."""
        with self._lock:
            if label not in self._fresh:
                self._fresh[label] = self._start(label)

    @contextmanager
    def isolated(self, label: str) -> Iterator[Worker]:
        """A fresh worker for one job, whose exit code counts."""
        with self._lock:
            expected = next((known for known in self._fresh if label.startswith(known)), None)
            worker = self._fresh.pop(expected) if expected is not None else None
        worker = worker or self._start(label)
        try:
            yield worker
            worker.close()
        except BaseException:
            self._drop(worker)
            raise
        worker.log.unlink()
        with self._lock:
            self._alive.discard(worker)

    def end(self, reason: EpctxError | None = None) -> None:
        """End every worker, in good order or, with a reason, at once; then no new one starts."""
        with self._lock:
            self._ended = self._ended or reason
            alive, idle = list(self._alive), [*self._idle, *self._fresh.values()]
            self._idle, self._fresh = [], {}
        for worker in alive if reason is not None else ():
            worker.kill(reason)
        for worker in idle:
            if self._ended is None:
                worker.close()
                worker.log.unlink()
            self._drop(worker)
        with contextlib.suppress(OSError):
            self._logs.rmdir()  # only where no log is left

    def refuse_if_ended(self) -> None:
        """Raise the reason that `end` was called with, if it was."""
        with self._lock:
            if self._ended is not None:
                raise self._ended

    def _start(self, label: str) -> Worker:
        with self._lock:
            if self._ended is not None:
                raise self._ended
            number = next(self._numbers)
            self._logs.mkdir(parents=True, exist_ok=True)
            worker = Worker(self._work / f"w{number}", self._logs / f"{label}-{number}.log")
            self._alive.add(worker)
        return worker

    def _drop(self, worker: Worker) -> None:
        worker.kill()
        with self._lock:
            self._alive.discard(worker)
        with contextlib.suppress(FileNotFoundError):
            if worker.log.stat().st_size == 0:
                worker.log.unlink()
