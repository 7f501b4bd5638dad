"""Worker: it serves a scheduler and runs jobs until it is ended.

`carry_out` is a dask task; `describe` answers questions of a client. When nobody waits for a task
any more, because its build was interrupted or its machine is gone, dask releases the task, and this
worker ends its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import dask
import msgspec
from distributed import Worker, WorkerPlugin, get_worker
from distributed.security import Security
from msgspec.structs import replace

from epctx import codec
from epctx._version import __version__
from epctx.actions.action import StageStarted
from epctx.cache.digests import FreshDigests
from epctx.engine.executor import Cancelled, ending_signals
from epctx.errors import CompileError, EpctxError, Failure, StorageError
from epctx.files import outputs
from epctx.keys.toolchain import Toolchain
from epctx.machines import portable
from epctx.machines.address import unreachable
from epctx.machines.messages import (
    CALM,
    FACTS,
    TOPIC,
    Answer,
    Began,
    Facts,
    Question,
    Request,
    decoded,
    encoded,
    own_code,
)
from epctx.machines.portable import Blobs, Placed, moved_in
from epctx.providers.onnxruntime import host
from epctx.worker import protocol
from epctx.worker.pool import Pool, WorkerLease

_REACHED: Final = 30
"""Seconds within which a scheduler must answer."""
_AGAIN: Final = 2.0
"""Seconds between two attempts to reach a scheduler that is gone."""
_REST: Final = 5.0
"""Seconds without a job after which idle processes end."""
_DONE: Final = frozenset({"memory", "error"})
_PLUGIN: Final = "epctx"


class WorkerService:
    """Runs jobs with the processes of this machine. Thread-safe.

    Args:
        folder: its own empty scratch folder.
        failures: failures of EPs that `epctx doctor` found, by name.
        address: dask address of this worker.
        publish: sends an event with a topic.
    """

    def __init__(
        self,
        folder: Path,
        blobs: Blobs,
        failures: Mapping[str, Failure],
        address: str,
        publish: Callable[[str, str], None],
    ) -> None:
        self._folder = folder
        self._blobs = blobs
        self._failures = failures
        self._address = address
        self._publish = publish
        self._pool = Pool(work=folder / "work", logs=folder / "logs")
        self._toolchain = Toolchain(FreshDigests())
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._leases: dict[str, WorkerLease] = {}
        self._ended: set[str] = set()
        self._rested = threading.Timer(0, self._rest)

    def carry_out(self, text: str, key: str) -> None:
        """Run a request and store the answer in the blobs; the answer has the failure, if any.

        Args:
            key: key of the task, for `cancel`.

        Raises:
            RuntimeError: the answer cannot be stored (dask cannot send errors of epctx).
        """
        request = decoded(text, Request)
        begun: list[tuple[float, StageStarted]] = []

        def started(stage: StageStarted) -> None:
            begun.append((time.monotonic(), stage))
            event = Began(nonce=request.nonce, address=self._address, stage=stage)
            self._publish(TOPIC, encoded(event))

        with self._home() as home, self._running(request, key) as lease:
            answer = self._answered(lambda: self._worked(request, home, lease, started))
        now = time.monotonic()
        stages = tuple(replace(stage, ago=now - then) for then, stage in begun)
        try:
            self._blobs.put_answer(request.nonce, encoded(replace(answer, stages=stages)))
        except EpctxError as error:
            raise RuntimeError(error.reason) from error

    def describe(self, text: str) -> str:
        """Return the answer to a `Question`."""
        question = decoded(text, Question)

        def described() -> Answer:
            placed = Placed(question.files, home)
            placed.lay_out(self._blobs)
            descriptions = []
            for spec in moved_in(question.eps, placed.real):
                if spec.provider in self._failures:
                    raise protocol.restore(self._failures[spec.provider], log=home)
                descriptions.append(msgspec.Raw(codec.encode(self._toolchain.describe(spec))))
            return Answer(address=self._address, results=tuple(descriptions))

        with self._home() as home:
            return encoded(self._answered(described))

    def cancel(self, key: str) -> None:
        """End a task that nobody waits for any more."""
        with self._lock:
            self._ended.add(key)
            lease = self._leases.get(key)
        if lease is not None:
            lease.cancel(_ended())

    def close(self) -> None:
        """End all processes, and remove their files."""
        self._rested.cancel()
        self._pool.cancel(_ended())
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def _home(self) -> Iterator[Path]:
        """Make a folder for a job, and remove it at the end."""
        home = self._folder / f"j{next(self._numbers)}"
        try:
            yield home
        finally:
            shutil.rmtree(home, ignore_errors=True)

    @contextmanager
    def _running(self, request: Request, key: str) -> Iterator[WorkerLease]:
        """Lease a worker for a request; some seconds after the last request, idle processes end."""
        lease = WorkerLease(self._pool, request.label, request.kind)
        with self._lock:
            self._rested.cancel()
            self._leases[key] = lease
            if key in self._ended:
                lease.cancel(_ended())
        try:
            yield lease
        finally:
            lease.abandon()
            with self._lock:
                del self._leases[key]
                self._ended.discard(key)
                if not self._leases:
                    self._rested = threading.Timer(_REST, self._rest)
                    self._rested.daemon = True
                    self._rested.start()

    def _rest(self) -> None:
        with self._lock:
            if not self._leases:
                self._pool.close()
                self._ended.clear()
                for each in ("work", "logs"):
                    shutil.rmtree(self._folder / each, ignore_errors=True)

    def _answered(self, answer: Callable[[], Answer]) -> Answer:
        """Return an answer; if `answer` raises an error, an answer with the failure."""
        try:
            with outputs.refusals():
                return answer()
        except EpctxError as error:
            return self._failed(error)

    def _worked(
        self,
        request: Request,
        home: Path,
        lease: WorkerLease,
        started: Callable[[StageStarted], None],
    ) -> Answer:
        placed = Placed(request.files, home)
        placed.lay_out(self._blobs)
        job = moved_in(protocol.actions(protocol.Message(job=request.job)), placed.real)
        try:
            results = lease.run(
                job,
                started=started,
                timeout=request.timeout,
                budget=request.budget,
                memory=request.memory,
            )
            lease.close()
            answer = Answer(
                address=self._address,
                results=tuple(msgspec.Raw(codec.encode(each)) for each in results),
                peak_memory=lease.peak_memory,
            )
        except EpctxError as error:
            answer = self._failed(error)
        outputs = placed.collect(self._blobs, failed=answer.failure is not None)
        named = placed.named(codec.encode(answer).decode())
        return replace(codec.decode(named, Answer), made=outputs)

    def _failed(self, error: EpctxError) -> Answer:
        log, tail = None, error.log
        if tail is not None:
            with contextlib.suppress(OSError, StorageError):
                log = self._blobs.put(Path(tail.file)) if Path(tail.file).stat().st_size else None
        crashed = error if isinstance(error, CompileError) else None
        return Answer(
            address=self._address,
            failure=error.failure,
            own=isinstance(error, Cancelled | StorageError),
            starved=crashed is not None and crashed.starved,
            native=None if crashed is None else crashed.native,
            log_file="" if tail is None else tail.file,
            log=log,
            lines=() if tail is None else tail.lines,
        )


def _ended() -> Cancelled:
    return Cancelled("the build has ended", remedy="run the command again")


class _Plugin(WorkerPlugin):
    """Dask plugin that has the service of a worker, and cancels its released tasks."""

    name = _PLUGIN

    def __init__(self, folder: Path, blobs: Blobs, failures: Mapping[str, Failure]) -> None:
        self._made = folder, blobs, failures
        self.service: WorkerService

    def setup(self, worker: Worker) -> None:
        self.service = WorkerService(*self._made, worker.address, worker.log_event)

    def teardown(self, worker: Worker) -> None:
        self.service.close()

    def transition(self, key: Any, start: str, finish: str, **more: Any) -> None:
        if start == "executing" and finish not in _DONE:
            threading.Thread(target=self.service.cancel, args=(str(key),), daemon=True).start()


def carry_out(text: str) -> None:
    """Run a request in the worker that dask has chosen, as `WorkerService.carry_out`."""
    worker = get_worker()
    _service(worker).carry_out(text, str(worker.get_current_task()))


async def describe(text: str, dask_worker: Worker) -> str:
    """Answer a question in a worker, as `WorkerService.describe`."""
    return await asyncio.to_thread(_service(dask_worker).describe, text)


def _service(worker: Worker) -> WorkerService:
    plugin = worker.plugins[_PLUGIN]
    assert isinstance(plugin, _Plugin)
    return plugin.service


def facts(*, name: str | None = None, jobs: int = 0) -> Facts:
    """Return the facts of this worker; `jobs` is 0 for one for each core."""
    return Facts(
        name=name or f"{socket.gethostname()}:{os.getpid()}",
        epctx=__version__,
        code=own_code(),
        cpu=host.cpu(),
        jobs=jobs or len(host.cores()) or os.cpu_count() or 1,
    )


def serve(
    contact: str,
    tls: Security | None,
    store: str | None,
    *,
    failures: Mapping[str, Failure] | None = None,
    name: str | None = None,
    jobs: int = 0,
    notify: Callable[[str], None] = lambda words: None,
    once: bool = False,
) -> None:
    """Serve a scheduler until a signal; reconnect if the scheduler is lost.

    Args:
        store: URL of the shared cache.
        failures: failures of EPs, by name.
        jobs: number of jobs at the same time; 0 for one for each core.
        notify: receives text for people.
        once: whether to end when the scheduler is lost; the store is on this machine then.

    Raises:
        UsageError: the shared cache is missing or invalid.
        ProviderUnavailable: there never was a scheduler.
    """
    logging.getLogger("distributed").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="epctx-worker-", ignore_cleanup_errors=True) as scratch:
        blobs = portable.shared(store, None if once else Path(scratch) / "kept")
        own_facts = facts(name=name, jobs=jobs)
        site = Path(scratch), blobs, failures or {}
        asyncio.run(_serving(contact, tls, site, own_facts, notify, once=once))


async def _serving(
    contact: str,
    tls: Security | None,
    site: tuple[Path, Blobs, Mapping[str, Failure]],
    own_facts: Facts,
    notify: Callable[[str], None],
    *,
    once: bool,
) -> None:
    dask.config.set(CALM)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in ending_signals():
        with contextlib.suppress(NotImplementedError):  # on Windows Ctrl-C is an exception
            loop.add_signal_handler(number, ended.set)
    connected, (folder, blobs, failures) = False, site
    for times in itertools.count(1):
        worker_folder = folder / f"s{times}"
        worker_folder.mkdir()
        try:
            async with Worker(
                contact,
                nthreads=own_facts.jobs,
                name=f"{own_facts.name}-{times}",
                security=tls,
                plugins=(_Plugin(worker_folder, blobs, failures),),
                memory_limit=0,
                local_directory=str(worker_folder / "dask"),
                startup_information={FACTS: lambda worker: encoded(own_facts)},
                dashboard=False,
                dashboard_address=None,
                death_timeout=_REACHED,
            ) as worker:
                connected = True
                notify(f"serves {contact} as {own_facts.name}")
                over = asyncio.ensure_future(ended.wait())
                finished = asyncio.ensure_future(worker.finished())
                await asyncio.wait([over, finished], return_when=asyncio.FIRST_COMPLETED)
        except (OSError, RuntimeError) as error:  # errors by which dask's worker fails to start
            if not connected:
                raise unreachable(contact, tls, str(error)) from error
            if isinstance(error, RuntimeError):
                raise
        if once or ended.is_set():
            return
        notify(f"lost {contact}: reconnecting")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _AGAIN)
        if ended.is_set():
            return
