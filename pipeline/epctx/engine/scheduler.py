"""Jobs from their first to their end: one scaffold for all that has jobs carried out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from epctx.engine.executor import Cancelled, Executor
from epctx.errors import Interrupted

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
