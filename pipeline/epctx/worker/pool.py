"""Worker processes of a build: shared ones that take many jobs, and fresh ones for isolated EPs.

A job may state the memory that it needs: it then waits until that much is free.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import psutil

from epctx.actions.action import Action, StageStarted
from epctx.error_codes import Code
from epctx.errors import CompileError, EpctxError
from epctx.files import outputs
from epctx.manifest import ProviderSpec
from epctx.providers import registry
from epctx.text import size_words
from epctx.worker.process import Worker

_LARGE = 1 << 30
"""Bytes: a shared worker that has loaded EPs is ended once it had more, as it may keep them."""


class WorkerLease:
    """Where the jobs of one session group are carried out, one after the other. For one thread,
    `cancel` apart.

    Attributes:
        own: by one worker, fresh and nobody else's, whose exit code counts; else by any that is
            idle and has loaded the same EPs.
        machine: this one.
        peak_memory: the largest size, by the end of its last job, of who carried that out, in
            bytes.
    """

    machine: str | None = None
    peak_memory: int = 0

    def __init__(self, pool: Pool, label: str | None, kind: str = "") -> None:
        self.own = label is not None
        self._pool = pool
        self._kind = kind
        self._label = label
        self._worker: Worker | None = None
        self._busy = Cancelling[Worker](lambda worker, reason: worker.kill(reason))

    def run(
        self,
        job: Sequence[Action[Any]],
        *,
        started: Callable[[StageStarted], None] = lambda stage: None,
        finished: Callable[[int, Any], None] = lambda number, result: None,
        timeout: float | None = None,
        budget: float | None = None,
        memory: int | None = None,
    ) -> list[Any]:
        """Carry out a job and return its results, as `Worker.run`, which raises the same.

        Args:
            memory: bytes that it needs, and waits for; None: as if none.
        """
        with self._pool.admitted(memory), self.worker() as worker:
            with self._busy.running(lambda: worker):
                results = worker.run(
                    job, started=started, finished=finished, timeout=timeout, budget=budget
                )
            self.peak_memory = worker.peak_memory
            return results

    def cancel(self, reason: EpctxError) -> None:
        """From any thread: end the job that runs, which raises `reason`, as any to come does."""
        self._busy.cancel(reason)

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        """The worker for the next job; one of its own is started with the first."""
        if self._label is None:
            with self._pool.shared(self._kind) as worker:
                yield worker
            return
        if self._worker is not None and self._worker.expired:
            self.close()
        if self._worker is None:
            self._worker = self._pool.take(self._label)
        try:
            yield self._worker
        except EpctxError:
            if not self._worker.alive:
                self.abandon()  # a job that follows gets another
            raise

    def dismiss(self) -> None:
        """After the last job: let the own worker begin to end. `close` waits for it."""
        if self._worker is not None:
            self._worker.dismiss()

    def close(self) -> None:
        """After the last job: end the own worker. Raises CompileError if it does not end well."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._pool.give_back(worker)

    def abandon(self) -> None:
        """A job failed, or none is to come: end the own worker at once, if it is there still."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._pool.drop(worker)


class Pool:
    """Hands out workers, and ends them all. Thread-safe.

    Args:
        work: scratch of the build; each worker gets a folder of its own in it.
        logs: where the workers' logs go; those of workers that did well are removed.
        variables: of the workers' environment, beside what they always get.
    """

    def __init__(
        self, *, work: Path, logs: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self._variables = variables or {}
        self._work = work
        self._logs = logs
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._idle: dict[str, list[Worker]] = {}
        self._memory = MemoryBudget()
        self._alive: dict[Worker, int | None] = {}
        self._ended: EpctxError | None = None

    @contextmanager
    def shared(self, kind: str = "") -> Iterator[Worker]:
        """A worker that may have done other jobs of its kind and will be given more."""
        with self._lock:
            idle = self._idle.get(kind)
            worker = idle.pop() if idle else None
        worker = worker or self._start(kind.lower().replace(" ", "-") or "worker")
        try:
            yield worker
        except EpctxError:
            # It may have crashed; a new one costs a second, a sick one a build.
            self.drop(worker)
            raise
        if worker.killed:  # its job was cancelled as it finished
            self.drop(worker)
            return
        if worker.expired or (kind and worker.peak_memory > _LARGE):
            self.give_back(worker)
            return
        with self._lock:
            self._idle.setdefault(kind, []).append(worker)

    @contextmanager
    def admitted(self, memory: int | None) -> Iterator[None]:
        """Wait until there is room for a job that needs so many bytes; None: it does not wait."""
        if memory is None:
            yield
            return
        with self._memory.reserved(memory):
            yield

    @contextmanager
    def lease(self, label: str | None, eps: Sequence[ProviderSpec] = ()) -> Iterator[WorkerLease]:
        """Lease a worker of its own, called `label`; None for the workers shared by all jobs that
        load the same EPs.
        """
        lease = WorkerLease(self, label, kind(eps) if label is None else "")
        try:
            yield lease
            lease.close()
        finally:
            lease.abandon()

    @contextmanager
    def isolated(self, label: str) -> Iterator[Worker]:
        """A fresh worker for one job, whose exit code counts."""
        with self.lease(label) as lease, lease.worker() as worker:
            yield worker

    def take(self, label: str) -> Worker:
        """A fresh worker, to be given back or dropped."""
        with self._lock:
            taken = set(self._alive.values())
            place = next(number for number in itertools.count() if number not in taken)
            return self._start(label, place)

    def give_back(self, worker: Worker) -> None:
        """End a worker in good order. Raises CompileError if it does not end so."""
        try:
            worker.close()
        except BaseException:
            self.drop(worker)
            raise
        worker.log.unlink()
        with self._lock:
            self._alive.pop(worker, None)

    def drop(self, worker: Worker) -> None:
        """End a worker at once; its log stays, if there is anything in it."""
        worker.kill()
        with self._lock:
            self._alive.pop(worker, None)
        with contextlib.suppress(FileNotFoundError):
            if worker.log.stat().st_size == 0:
                worker.log.unlink()

    def cancel(self, reason: EpctxError) -> None:
        """End every worker at once; their jobs raise `reason`, and so does asking for more."""
        with self._lock:
            self._ended = self._ended or reason
            alive = list(self._alive)
        for worker in alive:
            worker.kill(reason)
        self.close()

    def close(self) -> None:
        """End the workers that have no job, in good order; those of no use any more at once."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for kind, workers in idle.items():
            for worker in workers:
                if self._ended is None:
                    # No group is to blame for the end of a worker that loaded EPs for several.
                    with contextlib.suppress(*(CompileError,) if kind else ()):
                        worker.close()
                    worker.log.unlink()
                self.drop(worker)
        with contextlib.suppress(OSError):
            self._logs.rmdir()  # only where no log is left

    def refuse_if_cancelled(self) -> None:
        """Raise the reason that `cancel` was called with, if it was."""
        with self._lock:
            if self._ended is not None:
                raise self._ended

    def _start(self, label: str, place: int | None = None) -> Worker:
        with self._lock:
            if self._ended is not None:
                raise self._ended
            number = next(self._numbers)
            with outputs.writing(self._logs):
                self._logs.mkdir(parents=True, exist_ok=True)
            log = self._logs / f"{label}-{number}.log"
            worker = Worker(self._work / f"w{number}", log, place, variables=self._variables)
            self._alive[worker] = place
        return worker


def kind(eps: Iterable[ProviderSpec]) -> str:
    """Name the EPs that a shared worker loads for these; empty: none that needs isolation."""
    return " ".join(sorted({spec.provider for spec in eps if registry.needs_isolation(spec)}))


def own_logs() -> Path:
    """A new folder for logs of a command that has no output folder: gone if none is left in it."""
    return Path(tempfile.mkdtemp(prefix="epctx-logs-"))


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
