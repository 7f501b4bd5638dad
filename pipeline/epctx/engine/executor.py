"""Where the jobs of a build are carried out, as the engine sees it.

This machine's processes are one implementation (`epctx.worker.pool.Pool`), other machines another
(`epctx.machines`). The engine asks for a lease, gives it jobs, watches their stages, and can cancel
them all; it knows no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from msgspec import Struct

from epctx.actions.action import Action, StageStarted
from epctx.errors import EpctxError
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
