"""Jobs of a build: the executor that runs them, and the threads that wait for them.

The processes of this machine are one implementation (`epctx.worker.pool.Pool`), other machines
another (`epctx.machines`). The engine leases a worker, gives it jobs, observes their stages, and
can cancel all jobs; it knows nothing else about them.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar, cast

from msgspec import Struct

from epctx.actions.action import Action, StageStarted
from epctx.errors import EpctxError, Interrupted
from epctx.keys.toolchain import Eps
from epctx.manifest import ProviderSpec

R = TypeVar("R")


class Cancelled(EpctxError):
    """Reason of a job that was ended because another failed, or because the user stopped."""


class WorkerLease(Protocol):
    """A worker, leased for the jobs of one session group, one after the other. Used by one thread;
    `cancel` by any.

    An own worker is fresh, and its exit code counts. A shared one may have run other jobs with the
    same EPs.
    """

    @property
    def own(self) -> bool:
        """Tell whether the worker runs no other jobs."""
        ...

    @property
    def machine(self) -> str | None:
        """Machine of the last job; None for this machine."""
        ...

    @property
    def peak_memory(self) -> int:
        """Largest resident size of the worker by the end of its last job, in bytes."""
        ...

    def run(
        self,
        job: Sequence[Action[Any]],
        *,
        started: Callable[[StageStarted], None],
        finished: Callable[[int, Any], None] = lambda number, result: None,
        timeout: float | None = None,
        budget: float | None = None,
        memory: int | None = None,
    ) -> list[Any]:
        """Run the actions of a job in one process, in order, and return their results.

        If the budget ends the job, the results are those of the actions that were finished.

        Args:
            started: receives each stage that the job enters, in the calling thread.
            finished: receives each result, with the index of its action; results from another
                machine arrive together at the end of the job.
            timeout: limit of the job, in seconds; None for no limit.
            budget: limit of the bounded actions, in seconds, counted from the start of the first
                one.
            memory: bytes that the job waits for; None not to wait.

        Raises:
            EpctxError: an action raised it; the worker crashed; the time is up; the job was
                cancelled for this reason.
        """
        ...

    def cancel(self, reason: EpctxError) -> None:
        """End the running job; it and all later jobs raise `reason`. Thread-safe."""
        ...

    def dismiss(self) -> None:
        """Let an own worker begin to end after the last job; `close` waits for it."""
        ...

    def close(self) -> None:
        """End an own worker after the last job. Raises CompileError if it does not end well."""
        ...


def one(
    lease: WorkerLease,
    action: Action[R],
    *,
    started: Callable[[StageStarted], None] = lambda stage: None,
    timeout: float | None = None,
) -> R:
    """Carry out a job of one action and return its result; raises as `WorkerLease.run`."""
    (result,) = lease.run([action], started=started, timeout=timeout)
    return cast(R, result)


class Executor(Protocol):
    """Carries out jobs. Used by many threads."""

    def lease(
        self, label: str | None, eps: Sequence[ProviderSpec] = ()
    ) -> AbstractContextManager[WorkerLease]:
        """Lease an own worker called `label`; with None, a worker shared by jobs with the same EPs.

        Args:
            eps: EPs that the jobs need.
        """
        ...

    def cancel(self, reason: EpctxError) -> None:
        """End all jobs at once; they and all later jobs raise `reason`."""
        ...

    def refuse_if_cancelled(self) -> None:
        """Raise the reason of `cancel`, if it was called."""
        ...

    def close(self) -> None:
        """Release all resources after the last job."""
        ...


class Executors(Protocol):
    """Factory of executors: the caller of the engine chooses where jobs run."""

    def __call__(
        self, *, work: Path, logs: Path, variables: Mapping[str, str] | None = None
    ) -> Executor:
        """Make an executor.

        Args:
            work: scratch of the build.
            logs: folder of logs; the logs of workers that did not fail are removed.
            variables: environment variables of the workers.
        """
        ...


class Machines(Struct, frozen=True):
    """Machines that run the jobs of a build, and whose EPs it is planned with.

    Attributes:
        executors: makes executors.
        eps: EPs of other machines; None for this machine.
        jobs: returns how many session groups they take at the same time; None to take one for each
            core of this machine.
    """

    executors: Executors
    eps: Eps | None = None
    jobs: Callable[[], int] | None = None


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end a command as Ctrl-C does: SIGINT, SIGTERM and, unless it is
    ignored (nohup), SIGHUP.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


P = ParamSpec("P")
T = TypeVar("T")


class Scheduler:
    """Threads that wait for jobs, and an executor that runs them.

    As a context manager, it ends all jobs and closes the executor. An exception inside cancels
    running jobs; so does the user's interrupt, which is raised as `Interrupted`.

    Args:
        executor: runs the jobs; closed at the end.
        threads: number of threads.
        interrupted: message of `Interrupted`.
    """

    def __init__(
        self, executor: Executor, *, threads: int = 1, interrupted: str = "interrupted"
    ) -> None:
        self.executor = executor
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="epctx")
        self._interrupted = interrupted
        self._lock = threading.Lock()
        self._stopping = False

    def submit(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """Call a function in a thread."""
        return self._threads.submit(function, *arguments, **named)

    def submit_after(
        self,
        futures: Iterable[Future[Any]],
        function: Callable[P, T],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> Future[T]:
        """Call a function as soon as all of `futures` are done.

        The thread that finishes the last future calls it, before tasks that were submitted later.
        """
        pending = set(futures)
        if not pending:
            return self.submit(function, *arguments, **named)
        result: Future[T] = Future()
        this_thread = threading.get_ident()

        def call() -> None:
            try:
                result.set_result(function(*arguments, **named))
            except BaseException as error:
                result.set_exception(error)

        def finished(future: Future[Any]) -> None:
            with self._lock:
                pending.discard(future)
                due = not pending and not self._stopping
            if due and threading.get_ident() == this_thread:  # all were done before
                self._threads.submit(call)
            elif due:
                call()

        for future in list(pending):
            future.add_done_callback(finished)
        return result

    def together(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run tasks in this thread and in idle ones.

        Raises:
            Exception: the first failure that is not a cancellation.
        """
        if not tasks:
            return []
        futures: list[Future[T]] = [Future(), *(self.submit(task) for task in tasks[1:])]
        for number, task in enumerate(tasks):
            if any(each.done() and each.exception() is not None for each in futures[:number]):
                break
            if futures[number].cancel():  # no thread has started it
                futures[number] = _done(task)
        wait(futures, return_when=FIRST_EXCEPTION)
        wait([future for future in futures if not future.cancel()])
        ended = [future for future in futures if not future.cancelled()]
        errors = [error for future in ended if (error := future.exception()) is not None]
        if errors:
            raise min(errors, key=lambda error: isinstance(error, Cancelled))
        return [future.result() for future in futures]

    def results(self, futures: Sequence[Future[T]]) -> list[T]:
        """Wait for all futures and return their results. Raises as the first of them."""
        pending = set(futures)
        while pending:
            # In short steps, since an endless wait cannot be interrupted on Windows.
            _, pending = wait(pending, timeout=0.2)
        return [future.result() for future in futures]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        interrupted = isinstance(error, KeyboardInterrupt)
        if error is not None:
            with self._lock:
                self._stopping = True
            what = "interrupted" if interrupted else "another job failed"
            self.executor.cancel(Cancelled(what, remedy="run the command again"))
        self._threads.shutdown(cancel_futures=error is not None)
        self.executor.close()
        if interrupted:
            raise Interrupted(self._interrupted, remedy="run the command again") from None


def _done(task: Callable[[], T]) -> Future[T]:
    """Run a task in this thread, and return its future."""
    future: Future[T] = Future()
    try:
        future.set_result(task())
    except Exception as error:
        future.set_exception(error)
    return future
