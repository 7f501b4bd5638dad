"""Executor over a cluster: each job is a dask task."""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from epctx import codec
from epctx.actions.action import Action, StageStarted
from epctx.cache.digests import FreshDigests
from epctx.engine.executor import Machines
from epctx.error_codes import Code
from epctx.errors import CompileError, EpctxError, Failure, LogTail, ProviderUnavailable
from epctx.files import outputs
from epctx.files.digest import Digest
from epctx.keys.toolchain import ProviderRecord
from epctx.machines import address as addresses
from epctx.machines import local, portable
from epctx.machines.address import Tls
from epctx.machines.cluster import Cluster, Lost, Member, Task, WorkersEps
from epctx.machines.messages import Answer, Began, Request, decoded, encoded
from epctx.machines.portable import Blobs, new_nonce
from epctx.manifest import ProviderSpec
from epctx.worker import protocol
from epctx.worker.pool import Cancelling, kind

_ATTEMPTS: Final = 4
"""Number of lost workers after which a job fails, as in dask's own scheduler."""
_RETURN: Final = 90.0
"""Seconds to wait for a worker that can run a job, if there was such a worker before."""
_LOOK: Final = 0.5
"""Seconds between two queries for such a worker."""
_Asks = Callable[..., Request]
"""Function that makes the request of one attempt, from a nonce."""
Able = Callable[[Sequence[ProviderSpec]], Sequence[Member]]
"""Function that returns the workers for jobs with some EPs; raises if there never was one."""


class WorkerLease:
    """Lease of a worker of the cluster, as `engine.executor.WorkerLease`.

    Attributes:
        own: whether each job runs in a fresh process, whose exit code counts.
    """

    def __init__(self, executor: Remote, label: str | None, eps: Sequence[ProviderSpec]) -> None:
        self.own = label is not None
        self.machine: str | None = None
        self.peak_memory = 0
        self._label = label
        self._executor = executor
        self._eps = eps
        self._busy = Cancelling[Task](Task.cancel)

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
        """Run a job and return its results; if its worker is lost, run it on another.

        Raises:
            ProviderUnavailable: no worker can run it.
            EpctxError: as in `engine.executor.WorkerLease.run`.
        """
        blobs = self._executor.blobs
        files = portable.pack(blobs, job)
        request = partial(
            Request,
            label=self._label,
            kind=kind(self._eps) if self._label is None else "",
            job=protocol.encode(job),
            files=files,
            timeout=timeout,
            budget=budget,
            memory=memory,
        )
        answer = self._answered(request, started)
        portable.receive(blobs, files, answer.made, failed=answer.failure is not None)
        if answer.failure is not None:
            raise self._restored(answer)
        self.peak_memory = answer.peak_memory
        results = self._results(answer, job, less=budget is not None)
        for number, result in enumerate(results):
            finished(number, result)
        return results

    def cancel(self, reason: EpctxError) -> None:
        """End the running job; it and all later jobs raise `reason`. Thread-safe."""
        self._busy.cancel(reason)

    def dismiss(self) -> None:
        """Do nothing: the process of a job ends with the job."""

    def close(self) -> None:
        """Do nothing, as `dismiss`."""

    def _answered(self, request: _Asks, started: Callable[[StageStarted], None]) -> Answer:
        """Return the answer to a request. If the request fails because of a machine, try others."""
        refused: list[str] = []
        lost = 0
        while True:
            able = self._executor.able(self._eps, refused, self._busy.refuse)
            try:
                answer = self._request(able, request, started)
            except Lost as error:
                lost += error.workers
                if lost >= _ATTEMPTS:
                    raise self._killing(lost) from None
                continue
            if answer.own and {each.address for each in able} - {*refused, answer.address}:
                refused.append(answer.address)
                continue
            return answer

    def _request(
        self, able: Sequence[Member], request: _Asks, started: Callable[[StageStarted], None]
    ) -> Answer:
        from epctx.machines import serving

        names = {each.address: each.facts.name for each in able}
        begun: list[Began] = []

        def began(event: Began) -> None:
            begun.append(event)
            self.machine = names.get(event.address)
            started(event.stage)

        nonce = self._executor.nonce()
        text = encoded(request(nonce=nonce))
        cluster = self._executor.cluster
        try:
            with self._busy.running(
                lambda: cluster.begin(serving.carry_out, text, nonce, able)
            ) as task:
                task.wait(began)
        finally:
            cluster.forget(nonce)
        answer = decoded(self._executor.blobs.get_answer(nonce), Answer)
        self.machine = names.get(answer.address)
        for stage in answer.stages[sum(each.address == answer.address for each in begun) :]:
            started(stage)
        return answer

    def _results(self, answer: Answer, job: Sequence[Action[Any]], *, less: bool) -> list[Any]:
        """Decode the results of a job; with `less`, there may be fewer results than actions."""
        try:
            pairs = zip(job, answer.results, strict=not less)
            results = [codec.decode(bytes(result), action.result) for action, result in pairs]
            if len(results) < len(answer.results):
                raise ValueError("there are more results than actions")
            return results
        except (msgspec.MsgspecError, ValueError) as error:
            raise CompileError(
                "the worker sent an invalid message",
                where=self.machine,
                why=str(error),
                remedy="use the same version of epctx on all machines",
            ) from error

    def _restored(self, answer: Answer) -> EpctxError:
        log = self._executor.log(self._label or "worker")
        text = codec.encode(answer.failure).decode()
        if answer.log is not None and answer.log_file:
            with outputs.writing(log):
                log.parent.mkdir(parents=True, exist_ok=True)
                self._executor.blobs.fetch(answer.log, log)
            there, here = (
                codec.encode(each).decode()[1:-1] for each in (answer.log_file, str(log))
            )
            text = text.replace(there, here)
        failure = codec.decode(text, Failure)
        if answer.own:
            failure = dataclasses.replace(failure, where=f"{self.machine}: {failure.where}")
        error = protocol.restore(failure, log=log)
        if isinstance(error, CompileError):
            error.starved, error.native = answer.starved, answer.native
        if answer.log is not None and answer.log_file:
            error.log = LogTail(file=str(log), lines=answer.lines)
        return error

    def _killing(self, lost: int) -> CompileError:
        return CompileError(
            f"at least {lost} workers were lost while they ran it, one after the other",
            where=self._label,
            why=self.machine and f"the last was {self.machine}",
            remedy="build with `--on dask://local?workers=1` to see its log, or without --on",
            code=Code.CRASHED,
        )


class Remote:
    """Executor that runs jobs on the workers of a cluster. Thread-safe.

    Args:
        logs: folder for the logs of failed jobs.
    """

    def __init__(self, cluster: Cluster, able: Able, blobs: Blobs, logs: Path) -> None:
        self.cluster = cluster
        self.blobs = blobs
        self._able = able
        self._logs = logs
        self._numbers = itertools.count(1)
        self._nonces: list[Digest] = []
        self._leases = Cancelling[WorkerLease](WorkerLease.cancel)

    @contextmanager
    def lease(self, label: str | None, eps: Sequence[ProviderSpec] = ()) -> Iterator[WorkerLease]:
        """Lease a worker that has these EPs."""
        with self._leases.running(lambda: WorkerLease(self, label, eps)) as lease:
            yield lease

    def cancel(self, reason: EpctxError) -> None:
        """End all jobs at once; they and all later jobs raise `reason`."""
        self._leases.cancel(reason)

    def refuse_if_cancelled(self) -> None:
        """Raise the reason of `cancel`, if it was called."""
        self._leases.refuse()

    def close(self) -> None:
        """Remove the answers after the last job."""
        self.blobs.forget(self._nonces)

    def able(
        self, eps: Sequence[ProviderSpec], refused: Sequence[str], refuse: Callable[[], None]
    ) -> Sequence[Member]:
        """Return the workers that can run a job; without those that refused it, if possible.

        Raises:
            ProviderUnavailable: no worker can run the job, and none came back; or the scheduler is
                gone.
        """
        deadline = time.monotonic() + _RETURN
        while not (able := self._able(eps)):
            refuse()
            if time.monotonic() > deadline:
                raise ProviderUnavailable(
                    "no worker is left that can run it",
                    remedy="start one with `epctx worker`, and run the command again",
                    code=Code.MACHINES,
                )
            time.sleep(_LOOK)
        return [each for each in able if each.address not in refused] or able

    def nonce(self) -> Digest:
        """Return the name of a new answer."""
        self._nonces.append(new_nonce())
        return self._nonces[-1]

    def log(self, label: str) -> Path:
        """Return the file for the log of a job that failed."""
        return self._logs / f"{label}-{next(self._numbers)}.log"


@contextmanager
def opened(
    url: str,
    tls: Tls,
    decides: Callable[[ProviderRecord], bool],
    environment: Mapping[str, str] = os.environ,
) -> Iterator[Machines]:
    """Connect to the machines that `--on` names, for one build.

    Args:
        decides: tells whether the lock was made with an EP.

    Raises:
        UsageError: the address or its options are invalid.
        ProviderUnavailable: dask is not installed; there is no scheduler.
    """
    where = addresses.parsed(url)
    addresses.refuse_without_dask()
    with ExitStack() as stack:
        if where.workers is not None:
            yield _of_this_machine(where.workers, stack)
            return
        contact, security = addresses.contact(where, tls)
        blobs = portable.shared(environment.get(portable.VARIABLE), digest=FreshDigests().of)
        cluster = Cluster(contact, security)
        stack.callback(cluster.close)
        eps = WorkersEps(cluster, blobs, decides)

        def executor(
            *, work: Path, logs: Path, variables: Mapping[str, str] | None = None
        ) -> Remote:
            return Remote(cluster, eps.able, blobs, logs)

        def jobs() -> int:
            return sum(member.facts.jobs for member in cluster.members())

        yield Machines(executors=executor, eps=eps, jobs=jobs)


def _of_this_machine(workers: int, stack: ExitStack) -> Machines:
    """Return a cluster on this machine that starts with the first job. Its workers have this
    machine's EPs.
    """
    lock = threading.Lock()
    started: list[tuple[Cluster, Blobs]] = []

    def executor(*, work: Path, logs: Path, variables: Mapping[str, str] | None = None) -> Remote:
        with lock:
            if not started:
                contact, tls, running, url = stack.enter_context(local.cluster(workers))
                cluster = Cluster(contact, tls, failure=lambda: running.failure)
                stack.callback(cluster.close)
                started.append((cluster, portable.shared(url, digest=FreshDigests().of)))
        cluster, blobs = started[0]

        def able(eps: Sequence[ProviderSpec]) -> Sequence[Member]:
            return cluster.members()

        return Remote(cluster, able, blobs, logs)

    return Machines(executors=executor, jobs=lambda: max(workers, os.cpu_count() or 1))
