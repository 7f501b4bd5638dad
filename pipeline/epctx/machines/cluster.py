"""A coordinator's connection: the workers that there are, and calls to them that end.

A call is a message to one worker, which answers; the scheduler passes both on where workers cannot
be reached but through it. A task of dask takes as much of its scheduler as compiling a tiny model,
and one that nobody can carry out is waited for without a word. Whoever waits for a call is told
when its worker is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from epctx.actions.action import StageStarted
from epctx.error_codes import Code
from epctx.errors import CompileError, EpctxError, ProviderUnavailable
from epctx.machines.address import speaks_tls, unreachable
from epctx.machines.messages import CALM, FACTS, HANDLER, TOPIC, Began, Facts, decoded

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
_LOOK: Final = 2.0
"""Seconds between two looks at who is there."""


class Lost(Exception):
    """A worker is gone, or the connection to it, before it had answered."""


class Member(Struct, frozen=True, kw_only=True):
    """A worker: dask's address of it, and what it says of itself."""

    address: str
    facts: Facts


class Call:
    """What a worker was asked. `cancel` from any thread.

    Args:
        heard: of its stages, of its end as None, and of what ends it before.
        end: tells the worker that nobody waits for it.
        lost: returns when it is known who is gone, if no answer came; raises if all are.

    Attributes:
        stages: how many it has told of.
    """

    def __init__(
        self,
        future: futures.Future[object],
        heard: queue.SimpleQueue[object],
        end: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self._future = future
        self._heard = heard
        self._end = end
        self._lost = lost
        self.stages = 0

    def cancel(self, reason: EpctxError) -> None:
        """Whoever waits for it raises `reason`; what carries it out is ended."""
        self._heard.put(reason)

    def wait(self, started: Callable[[StageStarted], None] = lambda stage: None) -> str:
        """Its answer. `started` hears of its stages.

        Raises:
            Lost: there will be none.
            EpctxError: it was cancelled, and this is the reason.
        """
        try:
            while True:
                said = self._heard.get()
                if isinstance(said, StageStarted):
                    self.stages += 1
                    started(said)
                elif isinstance(said, Exception):
                    raise said
                else:
                    return self._result()
        finally:
            if not self._future.done():
                self._future.cancel()
                self._end()

    def _result(self) -> str:
        try:
            answer = self._future.result()
        except (OSError, futures.CancelledError) as error:
            self._lost()
            raise Lost(str(error)) from error
        except Exception as error:  # what a worker raised that is none of ours
            raise CompileError(
                "a worker could not carry out a task",
                why=str(error),
                remedy="use the same version of epctx and of dask.distributed on all machines",
            ) from error
        if not isinstance(answer, str):
            raise Lost("it answered nothing")
        return answer


class Cluster:
    """The workers of a scheduler, as a build sees them. Used by many threads.

    Args:
        contact: as dask has it.
        direct: workers can be reached from here: the scheduler need not pass calls on.
        failure: why there will be no worker, if that is known.
    """

    def __init__(
        self,
        contact: str,
        tls: Security | None,
        *,
        direct: bool = False,
        failure: Callable[[], str | None] = lambda: None,
    ) -> None:
        import dask
        from distributed import Client

        dask.config.set(CALM)
        for name in ("distributed", "distributed.client", "asyncio", "tornado"):
            logging.getLogger(name).setLevel(SILENT)  # what counts is told as errors
        self.build = secrets.token_hex(8)
        self.contact = contact
        self._direct = direct
        self._failure = failure
        self._lock = threading.Lock()
        self._members: dict[str, Member] = {}
        self._strangers: dict[str, str] = {}
        self._calls: dict[int, tuple[str, queue.SimpleQueue[object]]] = {}
        self._attended: dict[str, Future[str] | None] = {}
        self._numbers = itertools.count(1)
        self._over = threading.Event()
        self._look = threading.Event()
        self.changed = threading.Condition(self._lock)
        if tls is not None and speaks_tls(contact) is False:  # dask's client does not end cleanly
            raise unreachable(contact, tls, "")
        try:
            self._client: Client = Client(
                contact, security=tls, timeout=_REACHED, set_as_default=False, name="epctx"
            )
        except (OSError, TimeoutError) as error:
            raise unreachable(contact, tls, str(error)) from error
        self._client.subscribe_topic(TOPIC, self._began)
        self._client.subscribe_topic("all", self._happened)
        self._watch = threading.Thread(target=self._watching, name="epctx-machines", daemon=True)
        self._watch.start()

    def close(self) -> None:
        """End what is left of this build on all workers."""
        self._over.set()
        self._look.set()
        self._watch.join()
        for future in self._attended.values():
            if future is not None:
                future.cancel()
        self._client.close(timeout=5)

    def members(self) -> Sequence[Member]:
        """The workers that are there; of none it waits for the first.

        Raises:
            ProviderUnavailable: none comes; the scheduler is gone.
        """
        deadline = time.monotonic() + _FIRST
        with self.changed:
            while not self._members:
                failed = self._failure()
                if self._over.is_set():
                    raise self.lost()
                if failed is not None or self._strangers or time.monotonic() > deadline:
                    raise self._nobody(failed)
                self.changed.wait(_STEP)
            return list(self._members.values())

    def call(self, address: str, what: str, text: str, number: int) -> Call:
        """Ask a worker.

        Args:
            what: of its `Site`: `carry_out` or `describe`.
            number: from `number`: events of it are for this call.

        Raises:
            Lost: the worker, or the scheduler, is gone.
        """
        heard: queue.SimpleQueue[object] = queue.SimpleQueue()
        with self._lock:
            if address not in self._members or self._over.is_set():
                raise Lost(address)
            self._calls[number] = address, heard
            first = address not in self._attended
            self._attended[address] = self._attended.get(address)
        if first:
            self._attended[address] = self._attend(address)
        key = f"{self.build}-{number}"
        future = self._run(self._asked(address, what, text, key))
        future.add_done_callback(lambda done: heard.put(None))

        def end() -> None:
            self._run(self._asked(address, "cancel", "", key))

        return Call(future, heard, end, lambda: self._who_is_gone(address))

    def number(self) -> int:
        """A number that no other call of this build has."""
        with self._lock:
            return next(self._numbers)

    def forget(self, number: int) -> None:
        """A call has ended."""
        with self._lock:
            self._calls.pop(number, None)

    @property
    def is_lost(self) -> bool:
        """The scheduler is gone."""
        return self._over.is_set()

    def lost(self) -> ProviderUnavailable:
        """What to raise when the scheduler is gone."""
        return ProviderUnavailable(
            "the scheduler is gone, or the network to it",
            where=self.contact,
            remedy="run the command again when it is there: what was built is in the cache",
            code=Code.MACHINES,
        )

    def _attend(self, address: str) -> Future[str]:
        """The one task of dask at a worker: it notices if nobody waits for it any more."""
        from epctx.machines import serving

        return self._client.submit(
            serving.attend,
            self.build,
            key=f"epctx-{self.build}-{address}",
            workers=[address],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )

    async def _asked(self, address: str, what: str, text: str, key: str) -> object:
        message = {"what": what, "text": text, "key": key}
        if self._direct:
            return await getattr(self._client.rpc(address), HANDLER)(**message)
        scheduler: Any = self._client.scheduler
        return await scheduler.proxy(worker=address, msg={"op": HANDLER, **message})

    def _run(self, coroutine: Coroutine[Any, Any, object]) -> futures.Future[object]:
        loop: Any = self._client.loop
        return asyncio.run_coroutine_threadsafe(coroutine, loop.asyncio_loop)

    def _who_is_gone(self, address: str) -> None:
        """Wait until the scheduler has told of a worker that gave no answer, or is gone itself."""
        self._look.set()
        with self.changed:
            self.changed.wait_for(lambda: address not in self._members, _SILENCE)
        if self._over.is_set():
            raise self.lost()

    def _began(self, event: tuple[float, Any]) -> None:
        """A job has come to stages, perhaps of another's build."""
        try:
            began = decoded(event[1], Began)
        except CompileError:
            return
        with self._lock:
            known = self._calls.get(began.number) if began.build == self.build else None
        if known is not None:
            for stage in began.stages:
                known[1].put(stage)

    def _happened(self, event: tuple[float, Any]) -> None:
        """The scheduler tells of workers that come and go."""
        said = event[1]
        if isinstance(said, dict) and said.get("action") == "remove-worker":
            self._gone(str(said.get("worker")))
        self._look.set()

    def _gone(self, address: str) -> None:
        with self.changed:
            self._members.pop(address, None)
            lost = [heard for place, heard in self._calls.values() if place == address]
            self.changed.notify_all()
        for heard in lost:
            heard.put(Lost(address))

    def _watching(self) -> None:
        while not self._over.is_set():
            try:
                scheduler: Any = self._client.scheduler
                found = self._client.sync(
                    scheduler.identity, n_workers=-1, callback_timeout=_SILENCE
                )
            except Exception:  # whatever dask makes of a connection that is gone
                found = None
            if found is None or self._client.status != "running":
                self._end()
                return
            self._see(found["workers"])
            due = time.monotonic() + _LOOK
            while not self._look.wait(_STEP) and time.monotonic() < due:
                self._doubt()
            self._look.clear()

    def _see(self, workers: Mapping[str, Mapping[str, Any]]) -> None:
        with self._lock:
            gone = self._members.keys() - workers.keys()
            new = {name: told for name, told in workers.items() if name not in self._members}
        for address in gone:
            self._gone(address)
        found: dict[str, Member] = {}
        for address, told in new.items():
            try:
                found[address] = Member(address=address, facts=decoded(told.get(FACTS), Facts))
            except CompileError as error:
                self._strangers[address] = error.why or ""
        if found:
            with self.changed:
                self._members |= found
                self.changed.notify_all()

    def _doubt(self) -> None:
        if self._client.status != "running":
            self._end()

    def _end(self) -> None:
        self._over.set()
        with self.changed:
            waiting = [heard for _, heard in self._calls.values()]
            self._members.clear()
            self.changed.notify_all()
        for heard in waiting:
            heard.put(self.lost())

    def _nobody(self, failed: str | None) -> ProviderUnavailable:
        strange = [f"{address} was not started by this epctx" for address in self._strangers]
        return ProviderUnavailable(
            "there is no worker",
            where=self.contact,
            why=failed or ", ".join(strange) or None,
            remedy=f"start workers with `epctx worker {self.contact}`",
            code=Code.MACHINES,
        )
