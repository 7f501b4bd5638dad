"""Jobs of a build: the executor that runs them, and the threads that wait for them.

The processes of this machine are one implementation (`epctx.worker.pool.Pool`), other machines
another (`epctx.machines`). The engine leases a worker, gives it jobs, observes their stages, and
can cancel all jobs; it knows nothing else about them.
"""

from __future__ import annotations

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
    """Why a job ended that did not fail itself: another failed, or the user stopped."""


class WorkerLease(Protocol):
    """Where the jobs of one session group are carried out, one after the other. For one thread,
    `cancel` apart.

    One of its own is fresh, and how it ends counts; others have carried out jobs of the same EPs.
    """

    @property
    def own(self) -> bool:
        """Nobody else's jobs are carried out there."""
        ...

    @property
    def machine(self) -> str | None:
        """Where its last job was carried out; None: on this machine."""
        ...

    @property
    def peak_memory(self) -> int:
        """The largest size, by the end of its last job, of who carried that out, in bytes."""
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
        """Carry out a job, an action after the other in one process, and return their results.

        A job that the budget has ended has less: those of the actions that had ended by then.

        Args:
            started: hears of each stage that the job enters, in the calling thread.
            finished: hears of each result, with the action's number in the job; of a job that is
                carried out on another machine, all of them at its end.
            timeout: in seconds; None: it may take as long as it takes.
            budget: in seconds, of the actions that are bounded, from the first of them on.
            memory: bytes that the job needs: it waits until they are free; None: it does not wait.

        Raises:
            EpctxError: what an action raised; what carries it out crashed; the time is up; it was
                cancelled, and then it is the reason.
        """
        ...

    def cancel(self, reason: EpctxError) -> None:
        """From any thread: end the job that runs, which raises `reason`, as any to come does."""
        ...

    def dismiss(self) -> None:
        """After the last job: let what is its own begin to end. `close` waits for it."""
        ...

    def close(self) -> None:
        """After the last job: end what is its own. Raises CompileError if it does not end well."""
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
        """Return a lease of its own, called `label`; None: one that shares what carries out others'
        jobs of the same EPs.

        At its end nothing of its own is left.

        Args:
            eps: that its jobs need.
        """
        ...

    def cancel(self, reason: EpctxError) -> None:
        """End every job at once; they, and all that are asked for later, raise `reason`."""
        ...

    def refuse_if_cancelled(self) -> None:
        """Raise the reason that `cancel` was called with, if it was."""
        ...

    def close(self) -> None:
        """After the last job: leave nothing behind."""
        ...


class Executors(Protocol):
    """Makes executors: who calls the engine chooses where jobs are carried out."""

    def __call__(
        self, *, work: Path, logs: Path, variables: Mapping[str, str] | None = None
    ) -> Executor:
        """An executor.

        Args:
            work: scratch of the build.
            logs: where logs go; those of who did well are removed.
            variables: of the environment of what carries out jobs.
        """
        ...


class Machines(Struct, frozen=True):
    """Where a build's jobs are carried out, and whose EPs it is planned with.

    Attributes:
        executors: make what carries out jobs.
        eps: None: those of this machine.
        jobs: how many session groups they take at a time; None: one for each core of this machine.
    """

    executors: Executors
    eps: Eps | None = None
    jobs: Callable[[], int] | None = None


P = ParamSpec("P")
T = TypeVar("T")


class Scheduler:
    """Threads that wait for jobs, and an executor that carries them out.

    A context manager. At its end no job runs and nothing of the executor is left. What is raised
    inside cancels what still runs; the user's interrupt does too, and is raised as `Interrupted`.

    Args:
        executor: closed at the end.
        threads: how many of them.
        interrupted: what `Interrupted` says.
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
        """Call a function as soon as all of `futures`, at least one, are done.

        It is called in the thread of the last of them, before what was submitted meanwhile.
        """
        result: Future[T] = Future()
        left = set(futures)
        own = threading.get_ident()

        def call() -> None:
            try:
                result.set_result(function(*arguments, **named))
            except BaseException as error:
                result.set_exception(error)

        def finished(future: Future[Any]) -> None:
            with self._lock:
                left.discard(future)
                due = not left and not self._stopping
            if due and threading.get_ident() == own:  # all were done before
                self._threads.submit(call)
            elif due:
                call()

        for future in list(left):
            future.add_done_callback(finished)
        return result

    def together(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Carry out tasks in this thread, and in those that have nothing else to do.

        Raises:
            Exception: what the first of them raised, other than because another one failed.
        """
        futures: list[Future[T]] = [Future(), *(self.submit(task) for task in tasks[1:])]
        for number, task in enumerate(tasks):
            if any(each.done() and each.exception() is not None for each in futures[:number]):
                break
            if futures[number].cancel():  # nobody has begun it
                futures[number] = _done(task)
        wait(futures, return_when=FIRST_EXCEPTION)
        wait([future for future in futures if not future.cancel()])
        ended = [future for future in futures if not future.cancelled()]
        errors = [error for future in ended if (error := future.exception()) is not None]
        if errors:
            raise min(errors, key=lambda error: isinstance(error, Cancelled))
        return [future.result() for future in futures]

    def results(self, futures: Sequence[Future[T]]) -> list[T]:
        """Wait for all, and return what came of each. Raises what the first of them raised."""
        left = set(futures)
        while left:
            # In short steps: a wait without an end cannot be interrupted on Windows.
            _, left = wait(left, timeout=0.2)
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
    """Carry out a task, and return what came of it."""
    future: Future[T] = Future()
    try:
        future.set_result(task())
    except Exception as error:
        future.set_exception(error)
    return future
