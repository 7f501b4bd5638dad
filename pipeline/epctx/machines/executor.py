"""The engine's `Executor` over a cluster: each lane is one worker, for as long as that is there."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from epctx import codec
from epctx.actions.action import Action, StageStarted
from epctx.error_codes import Code
from epctx.errors import CompileError, EpctxError, Failure, LogTail, ProviderUnavailable
from epctx.files import outputs
from epctx.machines import portable
from epctx.machines.blobs import Blobs
from epctx.machines.cluster import Call, Cluster, Lost, Member
from epctx.machines.messages import Answer, Request, decoded, encoded
from epctx.machines.portable import Input, Packed, Packing
from epctx.manifest import ProviderSpec
from epctx.worker import protocol
from epctx.worker.cancelling import Cancelling
from epctx.worker.pool import kind

_ATTEMPTS: Final = 3
"""Workers that a job is given to, one after the other, each of which is lost with it."""
_RETURN: Final = 90.0
"""Seconds that a worker which can take a job is waited for, if there was one."""
_LOOK: Final = 0.5
"""Seconds between two looks whether it is there."""
Able = Callable[[Sequence[ProviderSpec]], Sequence[Member]]
"""The workers that can take jobs of these EPs now; raises where there never was one."""


class Lane:
    """Where the jobs of one session group are carried out, one after the other. For one thread,
    `cancel` apart.

    Attributes:
        own: by a process that is fresh and nobody else's, whose exit code counts.
        machine: the worker that carried out the last job.
        peak_memory: of the process that did, in bytes.
    """

    def __init__(
        self, executor: Remote, number: int, label: str | None, eps: Sequence[ProviderSpec]
    ) -> None:
        self.own = label is not None
        self.machine: str | None = None
        self.peak_memory = 0
        self._number = number
        self.label = label
        self._executor = executor
        self._eps = eps
        self._member: Member | None = None
        self._busy = Cancelling[Call](Call.cancel)

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
        """Carry out a job and return its results; of a worker that is lost, by another. How much
        memory a machine has is its own affair.

        Raises:
            ProviderUnavailable: no worker can take it.
            EpctxError: as `engine.executor.Lane.run` has it.
        """
        packed = self._executor.packing.pack(*job)
        last = self.own and any(action.isolates for action in job)
        tried: list[str] = []
        while True:
            member = self._on(tried)
            try:
                answer = self._asked(member, packed.portable, last, started, (timeout, budget))
            except Lost:
                tried.append(member.address)
                self.leave()
                if len(tried) == _ATTEMPTS:
                    raise self._killing(tried) from None
                continue
            if answer.own and self._executor.others(self._eps, [*tried, member.address]):
                tried.append(member.address)
                self.leave()
                continue
            taken = self._taken(answer, packed, member, job)
            for number, result in enumerate(taken):
                finished(number, result)
            if last:
                self.leave()
            return taken

    def cancel(self, reason: EpctxError) -> None:
        """From any thread: end the job that runs, which raises `reason`, as any to come does."""
        self._busy.cancel(reason)

    def dismiss(self) -> None:
        """After the last job: nothing is to be done; one that compiles ends with its job."""

    def close(self) -> None:
        """After the last job: end what is its own. Raises CompileError if it does not end well."""
        member = self._member
        if member is None or not self.own:
            return
        try:
            answer = self._asked(member, None, False, lambda stage: None, (None, None))
        except Lost:
            return  # its jobs were answered
        finally:
            self.leave()
        if answer.failure is not None:
            raise protocol.restore(answer.failure, log=Path(answer.log_file))

    def leave(self) -> None:
        """Nothing is to come for its worker: what is left of it there may go."""
        member, self._member = self._member, None
        if member is not None:
            self._executor.left(member, self._number)

    def _on(self, tried: Sequence[str]) -> Member:
        """The worker of the lane; another if it is not there, or was tried."""
        able = self._executor.able(self._eps, tried, self._busy.refuse)
        if self._member is None or self._member.address not in {each.address for each in able}:
            self.leave()
            self._member = self._executor.chosen(able)
        self.machine = self._member.facts.name
        return self._member

    def _asked(
        self,
        member: Member,
        job: portable.Portable | None,
        last: bool,
        started: Callable[[StageStarted], None],
        bounds: tuple[float | None, float | None],
    ) -> Answer:
        cluster = self._executor.cluster
        number = cluster.number()
        request = Request(
            build=cluster.build,
            lane=self._number,
            label=self.label,
            kind=kind(self._eps) if self.label is None else "",
            number=number,
            job=job,
            last=last,
            timeout=bounds[0],
            budget=bounds[1],
            over=self._executor.over(member),
        )
        text = encoded(request)
        try:
            with self._busy.running(
                lambda: cluster.call(member.address, "carry_out", text, number)
            ) as call:
                answer = decoded(call.wait(started), Answer)
            for stage in answer.stages[call.stages :]:
                started(stage)
            return answer
        finally:
            cluster.forget(number)

    def _taken(
        self, answer: Answer, packed: Packed, member: Member, job: Sequence[Action[Any]]
    ) -> list[Any]:
        """What an answer says, with paths of this machine."""
        self._executor.packing.receive(packed, answer.made)
        if answer.failure is not None:
            raise self._restored(answer, packed, member)
        self.peak_memory = answer.peak_memory
        try:
            return [
                codec.decode(_homed(bytes(result).decode(), answer, packed), action.result)
                for action, result in zip(job, answer.results, strict=False)
            ]
        except msgspec.MsgspecError as error:
            raise CompileError(
                "the worker broke its protocol",
                where=member.facts.name,
                why=str(error),
                remedy="use the same version of epctx on all machines",
            ) from error

    def _restored(self, answer: Answer, packed: Packed, member: Member) -> EpctxError:
        log = self._executor.log(self.label or "worker", self._number)
        if answer.log is not None:
            with outputs.writing(log):
                log.parent.mkdir(parents=True, exist_ok=True)
                log.unlink(missing_ok=True)
                self._executor.blobs.fetch(answer.log, log)
        text = codec.encode(answer.failure).decode()
        if answer.log is not None and answer.log_file:
            text = text.replace(_escaped(answer.log_file), _escaped(str(log)))
        failure = codec.decode(_homed(text, answer, packed), Failure)
        error = protocol.restore(failure, log=log)
        if isinstance(error, CompileError):
            error.starved, error.native = answer.starved, answer.native
        if answer.log is not None:
            error.log = LogTail(file=str(log), lines=answer.lines)
        return error

    def _killing(self, tried: Sequence[str]) -> CompileError:
        return CompileError(
            f"{len(tried)} workers were lost, one after the other, while they worked on it",
            where=self.label,
            why=f"the last was {self.machine}",
            remedy="build with `--on dask://local?workers=1` to see its log, or without --on",
            code=Code.CRASHED,
        )


def _homed(text: str, answer: Answer, packed: Packed) -> str:
    """JSON in which paths of the worker are those of this machine."""
    homes: dict[str, str] = {}
    places = zip(answer.roots, packed.portable.places, packed.paths, strict=False)
    for root, place, path in places:
        homes[root] = path.as_posix()
        for blob in place.beside if isinstance(place, Input) else ():
            beside = f"{Path(root).parent.as_posix()}/{blob.digest.hex}"
            homes[beside] = packed.sources[str(blob.digest)].as_posix()
    for root in sorted(homes, key=len, reverse=True):
        text = text.replace(_escaped(root), _escaped(homes[root]))
    return text


def _escaped(text: str) -> str:
    return codec.encode(text).decode()[1:-1]


class Remote:
    """Jobs carried out by the workers of a cluster. Used by many threads.

    Args:
        logs: where the logs of jobs that failed go.
    """

    def __init__(
        self, cluster: Cluster, able: Able, blobs: Blobs, packing: Packing, logs: Path
    ) -> None:
        self.cluster = cluster
        self.blobs = blobs
        self.packing = packing
        self._able = able
        self._logs = logs
        self._lock = threading.Lock()
        self._load: Counter[str] = Counter()
        self._over: dict[str, list[int]] = {}
        self._lanes = Cancelling[Lane](Lane.cancel)

    @contextmanager
    def lane(self, label: str | None, eps: Sequence[ProviderSpec] = ()) -> Iterator[Lane]:
        """A lane on a worker that has these EPs."""
        with self._lanes.running(lambda: Lane(self, self.cluster.number(), label, eps)) as lane:
            try:
                yield lane
                lane.close()
            finally:
                lane.leave()

    def cancel(self, reason: EpctxError) -> None:
        """End every job at once; they, and all that are asked for later, raise `reason`."""
        self._lanes.cancel(reason)

    def refuse_if_cancelled(self) -> None:
        """Raise the reason that `cancel` was called with, if it was."""
        self._lanes.refuse()

    def close(self) -> None:
        """After the last job: what is left at workers ends with the build."""

    def able(
        self, eps: Sequence[ProviderSpec], tried: Sequence[str], refuse: Callable[[], None]
    ) -> Sequence[Member]:
        """The workers that can take a job; those that were not tried, if there are some.

        Raises:
            ProviderUnavailable: there is none, and none came back; or the scheduler is gone.
        """
        deadline = time.monotonic() + _RETURN
        while True:
            refuse()
            if self.cluster.is_lost:
                raise self.cluster.lost()
            able = self._able(eps)
            if able:
                return [each for each in able if each.address not in tried] or able
            if time.monotonic() > deadline:
                raise ProviderUnavailable(
                    "no worker is left that can take it",
                    remedy="start one with `epctx worker`, and run the command again",
                    code=Code.MACHINES,
                )
            time.sleep(_LOOK)

    def others(self, eps: Sequence[ProviderSpec], tried: Sequence[str]) -> bool:
        """Whether a worker can take a job that was not tried."""
        return any(each.address not in tried for each in self._able(eps))

    def chosen(self, able: Sequence[Member]) -> Member:
        """The one of them that has the least to do, for a lane."""
        with self._lock:
            found = min(able, key=lambda each: self._load[each.address] / each.facts.jobs)
            self._load[found.address] += 1
        return found

    def left(self, member: Member, lane: int) -> None:
        """A lane is no more at a worker."""
        with self._lock:
            self._load[member.address] -= 1
            self._over.setdefault(member.address, []).append(lane)

    def over(self, member: Member) -> tuple[int, ...]:
        """Lanes that a worker may forget, each once."""
        with self._lock:
            return tuple(self._over.pop(member.address, ()))

    def log(self, label: str, number: int) -> Path:
        """The file for the log of a lane's job that failed."""
        return self._logs / f"{label}-{number}.log"
