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
"""Bytes of memory above which a shared worker with EPs is ended, since it may not free them."""


class WorkerLease:
    """Lease of a local worker, as `engine.executor.WorkerLease`.

    Attributes:
        own: whether one fresh worker runs all jobs, whose exit code counts; otherwise any idle
            worker with the same EPs runs a job.
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
        """Run a job and return its results. Arguments and errors are as in `Worker.run`.

        Args:
            memory: bytes that the job waits for; None not to wait.
        """
        with self._pool.admitted(memory), self.worker() as worker:
            with self._busy.running(lambda: worker):
                results = worker.run(
                    job, started=started, finished=finished, timeout=timeout, budget=budget
                )
            self.peak_memory = worker.peak_memory
            return results

    def cancel(self, reason: EpctxError) -> None:
        """End the running job; it and all later jobs raise `reason`. Thread-safe."""
        self._busy.cancel(reason)

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        """Yield the worker for the next job; an own one starts with the first."""
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
        """Let an own worker begin to end after the last job; `close` waits for it."""
        if self._worker is not None:
            self._worker.dismiss()

    def close(self) -> None:
        """End an own worker after the last job. Raises CompileError if it does not end well."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._pool.give_back(worker)

    def abandon(self) -> None:
        """End an own worker at once, if it still runs."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._pool.drop(worker)


class Pool:
    """Leases workers, and ends all of them. Thread-safe.

    Args:
        work: scratch of the build; each worker gets its own folder in it.
        logs: folder of logs; the logs of workers that did not fail are removed.
        variables: environment variables of the workers, besides the fixed ones.
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
        """Yield a worker that runs several jobs of its kind."""
        with self._lock:
            idle = self._idle.get(kind)
            worker = idle.pop() if idle else None
        worker = worker or self._start(kind.lower().replace(" ", "-") or "worker")
        try:
            yield worker
        except EpctxError:
            # It may have crashed, and a new one takes only a second.
            self.drop(worker)
            raise
        if worker.killed:  # its job was cancelled while it finished
            self.drop(worker)
            return
        if worker.expired or (kind and worker.peak_memory > _LARGE):
            self.give_back(worker)
            return
        with self._lock:
            self._idle.setdefault(kind, []).append(worker)

    @contextmanager
    def admitted(self, memory: int | None) -> Iterator[None]:
        """Reserve memory for a job, and wait for it; None not to wait."""
        if memory is None:
            yield
            return
        with self._memory.reserved(memory):
            yield

    @contextmanager
    def lease(self, label: str | None, eps: Sequence[ProviderSpec] = ()) -> Iterator[WorkerLease]:
        """Lease an own worker called `label`; None for the workers shared by all jobs that load the
        same EPs.
        """
        lease = WorkerLease(self, label, kind(eps) if label is None else "")
        try:
            yield lease
            lease.close()
        finally:
            lease.abandon()

    @contextmanager
    def isolated(self, label: str) -> Iterator[Worker]:
        """Yield a fresh worker for one job, whose exit code counts."""
        with self.lease(label) as lease, lease.worker() as worker:
            yield worker

    def take(self, label: str) -> Worker:
        """Start a worker; the caller gives it back or drops it."""
        with self._lock:
            places = set(self._alive.values())
            place = next(number for number in itertools.count() if number not in places)
            return self._start(label, place)

    def give_back(self, worker: Worker) -> None:
        """Let a worker end by itself. Raises CompileError if it does not end well."""
        try:
            worker.close()
        except BaseException:
            self.drop(worker)
            raise
        worker.log.unlink()
        with self._lock:
            self._alive.pop(worker, None)

    def drop(self, worker: Worker) -> None:
        """End a worker at once; keep its log unless it is empty."""
        worker.kill()
        with self._lock:
            self._alive.pop(worker, None)
        with contextlib.suppress(FileNotFoundError):
            if worker.log.stat().st_size == 0:
                worker.log.unlink()

    def cancel(self, reason: EpctxError) -> None:
        """End all workers at once; their jobs and all later ones raise `reason`."""
        with self._lock:
            self._ended = self._ended or reason
            alive = list(self._alive)
        for worker in alive:
            worker.kill(reason)
        self.close()

    def close(self) -> None:
        """Let idle workers end by themselves; after `cancel`, end them at once.

        Raises:
            CompileError: a worker of a single group ended badly; all others are ended, too.
        """
        with self._lock:
            idle, self._idle = self._idle, {}
        failure: CompileError | None = None
        for kind, workers in idle.items():
            for worker in workers:
                if self._ended is None:
                    try:
                        worker.close()
                        worker.log.unlink()
                    except CompileError as error:
                        # No single group is to blame if a worker with EPs of several ends badly.
                        failure = failure or (error if not kind else None)
                self.drop(worker)
        with contextlib.suppress(OSError):
            self._logs.rmdir()  # only where no log is left
        if failure is not None:
            raise failure

    def refuse_if_cancelled(self) -> None:
        """Raise the reason of `cancel`, if it was called."""
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
    """Return the names of those EPs that need isolation: a shared worker loads only them."""
    return " ".join(sorted({spec.provider for spec in eps if registry.needs_isolation(spec)}))


def own_logs() -> Path:
    """Make a folder for the logs of a command without an output folder; it is removed if empty."""
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
            CompileError: the job needs more memory than this machine has in total, swap included.
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
            f"it is estimated to take {size_words(size)} of memory, but this machine has "
            f"{size_words(machine)}, swap included",
            remedy=f"compile it in pieces: `partition: {{pieces: {{max_memory: {proposed}GB}}}}`; "
            "or build on a larger machine",
            code=Code.OUT_OF_MEMORY,
        )


def _available() -> int:
    return int(psutil.virtual_memory().available)


T = TypeVar("T")


class Cancelling(Generic[T]):
    """Running tasks that any thread can cancel, with all later ones. Thread-safe.

    Args:
        end: ends a running task for a reason; it must not wait.

    Attributes:
        reason: the first reason of `cancel`; None if it was not called.
    """

    def __init__(self, end: Callable[[T, EpctxError], None]) -> None:
        self.reason: EpctxError | None = None
        self._end = end
        self._lock = threading.Lock()
        self._running: list[T] = []

    def cancel(self, reason: EpctxError) -> None:
        """End all running tasks; later ones raise the first reason."""
        with self._lock:
            self.reason = self.reason or reason
            for each in self._running:
                self._end(each, self.reason)

    def refuse(self) -> None:
        """Raise the reason, if `cancel` was called."""
        if self.reason is not None:
            raise self.reason

    @contextmanager
    def running(self, begin: Callable[[], T]) -> Iterator[T]:
        """Begin a task, which runs in the body. Raises the reason if `cancel` was called before."""
        with self._lock:
            self.refuse()
            began = begin()
            self._running.append(began)
        try:
            yield began
        finally:
            with self._lock:
                self._running.remove(began)
