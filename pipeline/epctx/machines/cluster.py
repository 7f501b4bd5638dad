"""Connection of a build to its cluster: workers, dask tasks, and the EPs of the workers.

All jobs with the same EPs run on workers of one kind, on which each EP has the same fingerprint and
the CPUs are alike. So a key describes the origin of a result as in a local build.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from epctx import codec
from epctx.error_codes import Code
from epctx.errors import CompileError, EpctxError, ProviderUnavailable
from epctx.files.digest import Digest, of_bytes
from epctx.keys.toolchain import Described, ProviderRecord
from epctx.machines import portable
from epctx.machines.address import speaks_tls, unreachable
from epctx.machines.messages import (
    CALM,
    FACTS,
    TOPIC,
    Answer,
    Began,
    Facts,
    Question,
    decoded,
    encoded,
    own_code,
)
from epctx.machines.portable import Blobs
from epctx.manifest import ProviderSpec
from epctx.providers.onnxruntime import host
from epctx.worker import protocol

if TYPE_CHECKING:
    from distributed import Client, Future
    from distributed.security import Security

SILENT: Final = logging.CRITICAL + 1
_REACHED: Final = 10.0
"""Seconds within which the scheduler must answer."""
_FIRST: Final = 60.0
"""Seconds within which a first worker must come."""
_SILENCE: Final = 30.0
"""Seconds without an answer after which the scheduler is gone."""
_STEP: Final = 0.2
_LOOK: Final = 1.0
"""Seconds between two queries of the workers."""


class Lost(Exception):
    """At least `workers` workers of a task are gone."""

    def __init__(self, workers: int = 1) -> None:
        super().__init__(workers)
        self.workers = workers


class Member(Struct, frozen=True, kw_only=True):
    """A worker: its dask address, and its facts."""

    address: str
    facts: Facts


class Task:
    """A dask task for some workers. Any thread may call `cancel`.

    Args:
        here: tells whether one of these workers exists; raises if the scheduler is gone.
        heard: queue of its stages; None marks its end.
    """

    def __init__(
        self,
        future: Future[None],
        here: Callable[[], bool],
        heard: queue.SimpleQueue[object],
    ) -> None:
        self._future = future
        self._here = here
        self._heard = heard
        future.add_done_callback(lambda done: heard.put(None))

    def cancel(self, reason: EpctxError) -> None:
        """Make `wait` raise `reason`, and end the task."""
        self._heard.put(reason)

    def wait(self, began: Callable[[Began], None]) -> None:
        """Wait for its end; `began` receives its stages.

        Raises:
            Lost: no worker is left that can run it.
            EpctxError: it was cancelled for this reason; the scheduler is gone.
        """
        try:
            while (message := self._next()) is not None:
                if isinstance(message, EpctxError):
                    raise message
                assert isinstance(message, Began)
                began(message)
        finally:
            if not self._future.done():
                self._future.cancel(force=True)
        self._require_done()

    def _next(self) -> object:
        while True:
            try:
                return self._heard.get(timeout=_LOOK)
            except queue.Empty:
                if not self._here():
                    raise Lost from None

    def _require_done(self) -> None:
        from distributed import KilledWorker

        if self._future.status == "finished":
            return
        error = self._future.exception(timeout=_REACHED) if self._future.status == "error" else None
        if isinstance(error, KilledWorker):
            raise Lost(error.allowed_failures + 1)
        if error is None:  # cancelled by dask: `_here` raises if the scheduler is gone
            self._here()
            raise Lost
        raise CompileError(
            "a worker could not carry out a task",
            why=str(error),
            remedy="look at its output; all machines need the same version of epctx and of "
            "dask.distributed",
        ) from error


class Cluster:
    """Workers of a scheduler. Thread-safe.

    Args:
        contact: dask address of the scheduler.
        failure: returns why there will be no worker; None if unknown.
    """

    def __init__(
        self,
        contact: str,
        tls: Security | None,
        *,
        failure: Callable[[], str | None] = lambda: None,
    ) -> None:
        import dask
        from distributed import Client

        dask.config.set(CALM)
        for name in ("distributed", "distributed.client", "asyncio", "tornado"):
            logging.getLogger(name).setLevel(SILENT)  # relevant messages become errors
        self.contact = contact
        self._failure = failure
        self._lock = threading.Lock()  # dask's thread takes it, too: never wait inside
        self._looking = threading.Lock()
        self._heard: dict[Digest, queue.SimpleQueue[object]] = {}
        self._members: list[Member] = []
        self._strangers: list[str] = []
        self._seen = 0.0
        self._ever = False
        self._gone: ProviderUnavailable | None = None
        if tls is not None and speaks_tls(contact) is False:  # dask's client would not end cleanly
            raise unreachable(contact, tls, "")
        try:
            self._client: Client = Client(
                contact, security=tls, timeout=_REACHED, set_as_default=False, name="epctx"
            )
        except (OSError, TimeoutError) as error:
            raise unreachable(contact, tls, str(error)) from error
        self._client.subscribe_topic(TOPIC, self._began)

    def close(self) -> None:
        """Disconnect; the scheduler cancels the remaining tasks of this build."""
        self._client.close(timeout=5)

    def workers(self) -> Sequence[Member]:
        """Return the present workers, at most a second old. Raises ProviderUnavailable if the
        scheduler is gone.
        """
        with self._looking:
            if self._gone is not None:
                raise self._gone
            if time.monotonic() > self._seen + _LOOK or not self._members:
                self._look()
                self._seen = time.monotonic()
            return self._members

    def members(self) -> Sequence[Member]:
        """Return the present workers; wait up to 60 s for the first one.

        Raises:
            ProviderUnavailable: no worker appears; the scheduler is gone.
        """
        deadline = time.monotonic() + _FIRST
        while not (members := self.workers()) and not self._ever:
            failed = self._failure()
            if failed is not None or self._strangers or time.monotonic() > deadline:
                raise self._nobody(failed)
            time.sleep(_STEP)
        return members

    def ask(
        self, function: Callable[..., Any], text: str, of: Sequence[Member]
    ) -> Mapping[str, object]:
        """Run a function on workers, and return the results by address: an exception for a worker
        that is gone. If not all workers answer within 60 s, all results are a TimeoutError.
        """
        places = [each.address for each in of]
        try:
            results: Mapping[str, object] = self._client.sync(
                self._client._run,
                function,
                text,
                workers=places,
                on_error="return",
                callback_timeout=_FIRST,
            )
        except (OSError, TimeoutError) as error:  # for example an error of the connection
            return dict.fromkeys(places, error)
        return results

    def begin(
        self, function: Callable[[str], None], text: str, nonce: Digest, of: Sequence[Member]
    ) -> Task:
        """Submit a task: one of these workers runs a function.

        Args:
            text: argument of the function.
            nonce: name of its answer.
        """
        places = {each.address for each in of}
        events: queue.SimpleQueue[object] = queue.SimpleQueue()
        with self._lock:
            self._heard[nonce] = events
        future = self._client.submit(
            function,
            text,
            key=f"epctx-{of_bytes(nonce.hex.encode()).hex}",
            workers=sorted(places),
            allow_other_workers=False,
            pure=False,
        )
        return Task(future, lambda: any(each.address in places for each in self.workers()), events)

    def forget(self, nonce: Digest) -> None:
        """Drop the queue of a task that has ended."""
        with self._lock:
            self._heard.pop(nonce, None)

    def _began(self, event: tuple[float, Any]) -> None:
        """Pass on the stage of a job; ignore jobs of other builds."""
        try:
            began = decoded(event[1], Began)
        except CompileError:
            return
        with self._lock:
            events = self._heard.get(began.nonce)
        if events is not None:
            events.put(began)

    def _look(self) -> None:
        identity = None
        if self._client.status == "running":
            scheduler: Any = self._client.scheduler
            with suppress(Exception):  # dask raises various errors if the connection is gone
                identity = self._client.sync(
                    scheduler.identity, n_workers=-1, callback_timeout=_SILENCE
                )
        if identity is None:
            self._gone = ProviderUnavailable(
                "the connection to the scheduler is lost",
                where=self.contact,
                remedy="run the command again when it is back: results so far are in the cache",
                code=Code.MACHINES,
            )
            raise self._gone
        previous = {each.address: each for each in self._members}
        self._members, self._strangers = [], []
        for address, worker in identity["workers"].items():
            try:
                self._members.append(
                    previous.get(address)
                    or Member(address=address, facts=decoded(worker.get(FACTS), Facts))
                )
            except CompileError:
                self._strangers.append(address)
        self._ever = self._ever or bool(self._members)

    def _nobody(self, failed: str | None) -> ProviderUnavailable:
        strange = [f"{address} was not started by this epctx" for address in self._strangers]
        return ProviderUnavailable(
            "the scheduler has no workers",
            where=self.contact,
            why=failed or ", ".join(strange) or None,
            remedy=f"start workers with `epctx worker {self.contact}`",
            code=Code.MACHINES,
        )


_LISTED: Final = 5
"""Number of workers that a message names."""
Decides = Callable[[ProviderRecord], bool]
"""Function that tells whether the lock was made with such an EP."""


class Kind(Struct, frozen=True):
    """Common facts of workers that can run jobs with the same EPs."""

    eps: tuple[Described, ...]
    cpu: host.Cpu


class WorkersEps:
    """EPs of a cluster's workers; each worker is asked once for each list of EPs. Thread-safe.

    Args:
        decides: chooses among several versions of an EP on workers with the same CPU.
    """

    def __init__(self, cluster: Cluster, blobs: Blobs, decides: Decides) -> None:
        self._cluster = cluster
        self._blobs = blobs
        self._decides = decides
        self._lock = threading.Lock()
        self._asked: dict[bytes, dict[str, Kind | EpctxError]] = {}
        self._kinds: dict[bytes, Kind] = {}
        self._code = own_code()

    def described(self, spec: ProviderSpec) -> Described:
        """Return the description of an EP, as `Eps`."""
        return self.kind((spec,)).eps[0]

    def cpu(self, specs: Sequence[ProviderSpec]) -> host.Cpu:
        """Return the CPU of the workers, as `Eps`."""
        return self.kind(specs).cpu

    def kind(self, specs: Sequence[ProviderSpec]) -> Kind:
        """Return the common facts of the workers that run jobs with these EPs.

        Raises:
            ProviderUnavailable: there is no such worker, or they differ.
        """
        name = _name(specs)
        with self._lock:
            if name not in self._kinds:
                self._kinds[name] = self._chosen(specs)
            return self._kinds[name]

    def able(self, specs: Sequence[ProviderSpec]) -> list[Member]:
        """Return the workers that can run jobs with these EPs now. Raises as `kind`."""
        required = self.kind(specs)
        with self._lock:
            kinds = self._found(self._cluster.workers(), specs)
        return [member for member, kind in kinds if kind == required]

    def _found(
        self, members: Sequence[Member], specs: Sequence[ProviderSpec]
    ) -> list[tuple[Member, Kind | EpctxError]]:
        """Return the facts of workers about these EPs. Workers that are gone, or whose epctx or
        libraries differ from this machine's, are left out.
        """
        fitting = [each for each in members if each.facts.code == self._code]
        answers = self._asked.setdefault(_name(specs), {})
        new = [each for each in fitting if each.address not in answers]
        if new:
            answers |= self._answers(new, specs)
        return [(each, answers[each.address]) for each in fitting if each.address in answers]

    def _answers(
        self, members: Sequence[Member], specs: Sequence[ProviderSpec]
    ) -> dict[str, Kind | EpctxError]:
        from epctx.machines import serving

        files = portable.pack(self._blobs, specs)
        text = encoded(Question(eps=tuple(specs), files=files))
        answers = self._cluster.ask(serving.describe, text, members)
        kinds: dict[str, Kind | EpctxError] = {}
        for member in members:
            reply = answers.get(member.address)
            if isinstance(reply, TimeoutError):
                kinds[member.address] = _missing("does not answer", [])
            if not isinstance(reply, str):
                continue
            answer = decoded(reply, Answer)
            if answer.failure is None:
                eps = decoded(codec.encode(answer.results).decode(), tuple[Described, ...])
                if len(eps) == len(specs):
                    kinds[member.address] = Kind(eps, member.facts.cpu)
            elif not answer.own:  # not kept if the machine is the reason: the worker is asked again
                kinds[member.address] = protocol.restore(answer.failure, log=Path())
        return kinds

    def _chosen(self, specs: Sequence[ProviderSpec]) -> Kind:
        members = sorted(self._cluster.members(), key=lambda each: each.facts.name)
        kinds = self._found(members, specs)
        able = [(member, kind) for member, kind in kinds if isinstance(kind, Kind)]
        if not able:
            raise self._nobody(members, kinds, specs)
        locked = [each for each in able if all(self._decides(ep.record) for ep in each[1].eps)]
        able = locked or able
        _refuse_several(able)
        jobs: Counter[bytes] = Counter()
        for member, kind in able:
            jobs[codec.encode(kind)] += member.facts.jobs
        own_cpu = host.cpu()
        return max(
            (kind for _, kind in able), key=lambda k: (k.cpu == own_cpu, jobs[codec.encode(k)])
        )

    def _nobody(
        self,
        members: Sequence[Member],
        kinds: Sequence[tuple[Member, Kind | EpctxError]],
        specs: Sequence[ProviderSpec],
    ) -> ProviderUnavailable:
        if not any(each.facts.code == self._code for each in members):
            return _missing(
                "no worker has the same epctx and libraries",
                [_unlike(m, self._code) for m in members],
            )
        failures = [(member, error) for member, error in kinds if isinstance(error, EpctxError)]
        what = " and ".join(dict.fromkeys(spec.provider for spec in specs)) or "jobs"
        reasons = [f"{member.facts.name}: {error.reason}" for member, error in failures]
        error = _missing(f"no worker can run {what}", reasons)
        if len({type(each) for _, each in failures}) == 1:
            error.code = failures[0][1].code
        return error


def _refuse_several(able: Sequence[tuple[Member, Kind]]) -> None:
    """Refuse workers of one kind of host on which an EP has several fingerprints.

    Raises:
        ProviderUnavailable: there are such workers.
    """
    first: dict[bytes, tuple[Member, ProviderRecord]] = {}
    for member, record in ((member, ep.record) for member, kind in able for ep in kind.eps):
        name = codec.encode((record.provider, record.options, record.host))
        first_member, first_record = first.setdefault(name, (member, record))
        if first_record != record:
            raise ProviderUnavailable(
                f"{record.provider} differs between workers",
                where=f"{first_member.facts.name} and {member.facts.name}",
                why=_difference(first_record, record),
                remedy="install one version, stop one of the workers, or build with a lock, which "
                "decides",
                code=Code.MACHINES,
            )


def _name(specs: Sequence[ProviderSpec]) -> bytes:
    return codec.encode([(each.provider, each.options, each.path_options) for each in specs])


def _unlike(member: Member, own: Mapping[str, Mapping[str, str]]) -> str:
    """Return the differences of epctx and its libraries between a worker and this machine."""
    here = {name: text for known in own.values() for name, text in known.items()}
    there = {name: text for known in member.facts.code.values() for name, text in known.items()}
    names = [
        f"{n} {there.get(n)}" for n in sorted(here) if here[n] != there.get(n) and n != "epctx"
    ]
    if not names:
        names = [f"epctx {member.facts.epctx}, of other sources"]
    return f"{member.facts.name}: {', '.join(names)}"


def _difference(one: ProviderRecord, other: ProviderRecord) -> str:
    names = sorted({*one.toolchain, *other.toolchain})
    differ = [n for n in names if one.toolchain.get(n) != other.toolchain.get(n)]
    lines = [f"{n}: {one.toolchain.get(n)} and {other.toolchain.get(n)}" for n in differ[:_LISTED]]
    return ", ".join(lines) or f"its code: {one.code} and {other.code}"


def _missing(what: str, reasons: Sequence[str]) -> ProviderUnavailable:
    more = [f"and {len(reasons) - _LISTED} more"] if len(reasons) > _LISTED else []
    return ProviderUnavailable(
        what,
        why="; ".join([*reasons[:_LISTED], *more]) or None,
        remedy="start a suitable worker with `epctx worker`; `epctx doctor` there shows its EPs",
        code=Code.MACHINES,
    )
