"""A coordinator's connection: the workers that there are, and tasks of dask that they carry out."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import CompileError, EpctxError, ProviderUnavailable
from epctx.files.digest import Digest, of_bytes
from epctx.machines.address import speaks_tls, unreachable
from epctx.machines.messages import CALM, FACTS, TOPIC, Began, Facts, decoded

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
"""Seconds between two looks at who is there."""


class Lost(Exception):
    """The workers are gone that a task was given to: so many at least."""

    def __init__(self, workers: int = 1) -> None:
        super().__init__(workers)
        self.workers = workers


class Member(Struct, frozen=True, kw_only=True):
    """A worker: dask's address of it, and what it says of itself."""

    address: str
    facts: Facts


class Task:
    """A task of dask that some workers can carry out. `cancel` from any thread.

    Args:
        here: tells whether one of them is there; raises if the scheduler is gone.
        heard: of its stages; and of its end, as None.
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
        """Make `wait` raise `reason`, and end what carries it out."""
        self._heard.put(reason)

    def wait(self, began: Callable[[Began], None]) -> None:
        """Wait for its end. `began` hears of its stages.

        Raises:
            Lost: no worker is left that can carry it out.
            EpctxError: it was cancelled, and this is the reason; the scheduler is gone.
        """
        try:
            while (said := self._next()) is not None:
                if isinstance(said, EpctxError):
                    raise said
                assert isinstance(said, Began)
                began(said)
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
        if error is None:  # cancelled, and not by us: raises if the scheduler is gone
            self._here()
            raise Lost
        raise CompileError(
            "a worker could not carry out a task",
            why=str(error),
            remedy="look at that worker; all machines need the same version of epctx and of "
            "dask.distributed",
        ) from error


class Cluster:
    """The workers of a scheduler, as a build sees them. Used by many threads.

    Args:
        contact: as dask has it.
        failure: why there will be no worker, if that is known.
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
            logging.getLogger(name).setLevel(SILENT)  # what counts is told as errors
        self.contact = contact
        self._failure = failure
        self._lock = threading.Lock()  # the client's own thread takes it: nobody waits inside
        self._looking = threading.Lock()
        self._heard: dict[Digest, queue.SimpleQueue[object]] = {}
        self._members: list[Member] = []
        self._strangers: list[str] = []
        self._seen = 0.0
        self._ever = False
        self._gone: ProviderUnavailable | None = None
        if tls is not None and speaks_tls(contact) is False:  # dask's client does not end cleanly
            raise unreachable(contact, tls, "")
        try:
            self._client: Client = Client(
                contact, security=tls, timeout=_REACHED, set_as_default=False, name="epctx"
            )
        except (OSError, TimeoutError) as error:
            raise unreachable(contact, tls, str(error)) from error
        self._client.subscribe_topic(TOPIC, self._began)

    def close(self) -> None:
        """Leave it: the scheduler cancels what is left of this build."""
        self._client.close(timeout=5)

    def workers(self) -> Sequence[Member]:
        """Return the workers that are there, as of the last second. Raises ProviderUnavailable: the
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
        """Return the workers that are there. The first ever is waited for, up to 60 s.

        Raises:
            ProviderUnavailable: none comes; the scheduler is gone.
        """
        deadline = time.monotonic() + _FIRST
        while not (found := self.workers()) and not self._ever:
            failed = self._failure()
            if failed is not None or self._strangers or time.monotonic() > deadline:
                raise self._nobody(failed)
            time.sleep(_STEP)
        return found

    def ask(
        self, function: Callable[..., Any], text: str, of: Sequence[Member]
    ) -> Mapping[str, object]:
        """Return what a function gives that workers run, by their addresses; of one that is gone an
        exception, of one that does not answer within 60 s a TimeoutError.
        """
        places = [each.address for each in of]
        try:
            found: Mapping[str, object] = self._client.sync(
                self._client._run,
                function,
                text,
                workers=places,
                on_error="return",
                callback_timeout=_FIRST,
            )
        except (OSError, TimeoutError) as error:  # of a connection OSError
            return dict.fromkeys(places, error)
        return found

    def begin(
        self, function: Callable[[str], None], text: str, nonce: Digest, of: Sequence[Member]
    ) -> Task:
        """Submit a task: one of these workers is to run a function.

        Args:
            text: what the function takes.
            nonce: what its answer is called.
        """
        places = {each.address for each in of}
        heard: queue.SimpleQueue[object] = queue.SimpleQueue()
        with self._lock:
            self._heard[nonce] = heard
        future = self._client.submit(
            function,
            text,
            key=f"epctx-{of_bytes(nonce.hex.encode()).hex}",
            workers=sorted(places),
            allow_other_workers=False,
            pure=False,
        )
        return Task(future, lambda: any(each.address in places for each in self.workers()), heard)

    def forget(self, nonce: Digest) -> None:
        """Drop what is heard of a task that has ended."""
        with self._lock:
            self._heard.pop(nonce, None)

    def _began(self, event: tuple[float, Any]) -> None:
        """Pass on that a job has come to a stage; it may be of another's build."""
        try:
            began = decoded(event[1], Began)
        except CompileError:
            return
        with self._lock:
            heard = self._heard.get(began.nonce)
        if heard is not None:
            heard.put(began)

    def _look(self) -> None:
        found = None
        if self._client.status == "running":
            asked: Any = self._client.scheduler
            with suppress(Exception):  # whatever dask makes of a connection that is gone
                found = self._client.sync(asked.identity, n_workers=-1, callback_timeout=_SILENCE)
        if found is None:
            self._gone = ProviderUnavailable(
                "the scheduler is gone, or the network to it",
                where=self.contact,
                remedy="run the command again when it is there: what was built is in the cache",
                code=Code.MACHINES,
            )
            raise self._gone
        known = {each.address: each for each in self._members}
        self._members, self._strangers = [], []
        for address, told in found["workers"].items():
            try:
                self._members.append(
                    known.get(address)
                    or Member(address=address, facts=decoded(told.get(FACTS), Facts))
                )
            except CompileError:
                self._strangers.append(address)
        self._ever = self._ever or bool(self._members)

    def _nobody(self, failed: str | None) -> ProviderUnavailable:
        strange = [f"{address} was not started by this epctx" for address in self._strangers]
        return ProviderUnavailable(
            "there is no worker",
            where=self.contact,
            why=failed or ", ".join(strange) or None,
            remedy=f"start workers with `epctx worker {self.contact}`",
            code=Code.MACHINES,
        )
