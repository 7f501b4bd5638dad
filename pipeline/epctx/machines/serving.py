"""A worker's process: it serves a scheduler until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import dask
import psutil
from distributed import Worker, WorkerPlugin, get_worker
from distributed.security import Security

from epctx import codec
from epctx._version import __version__
from epctx.actions.kinds import CODE
from epctx.cache.digests import FreshDigests
from epctx.keys.toolchain import Toolchain
from epctx.machines.address import unreachable
from epctx.machines.blobs import Blobs
from epctx.machines.messages import CALM, FACTS, HANDLER, Ep, Facts
from epctx.machines.site import Site
from epctx.providers.onnxruntime import host

_THREADS: Final = 256
"""That wait for processes. How many of those work at a time is for coordinators to say."""
logging.getLogger("distributed").setLevel(logging.ERROR)
_REACHED: Final = 30
"""Seconds within which a scheduler must answer."""
_AGAIN: Final = 2.0
"""Seconds between two attempts to reach a scheduler that is gone."""
_DONE: Final = frozenset({"memory", "error"})
PLUGIN: Final = "epctx"


@runtime_checkable
class Has(Protocol):
    """What a worker's plugin is for its tasks."""

    site: Site


class _Plugin(WorkerPlugin):
    """Has the site: coordinators ask it by messages, each of which has a thread, and attend it by
    a task of dask.
    """

    name = PLUGIN

    def __init__(self, folder: Path, shared: Blobs, eps: Mapping[str, Ep] | None) -> None:
        self._made = folder, shared, eps
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="epctx")
        self.site: Site

    def setup(self, worker: Worker) -> None:
        folder, shared, eps = self._made
        self.site = Site(folder, shared, worker.log_event, eps)
        worker.handlers[HANDLER] = self.asked

    def teardown(self, worker: Worker) -> None:
        self.site.close()
        self._threads.shutdown(wait=False)

    async def asked(self, what: str, text: str, key: str) -> str:
        """What the site answers, to one of the things that it can be asked."""
        known = {"carry_out": self.site.carry_out, "describe": self.site.describe}
        function = known.get(what, self.site.cancelled)
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, text, key)

    def transition(self, key: Any, start: str, finish: str, **more: Any) -> None:
        if start == "executing" and finish not in _DONE:
            threading.Thread(target=self.site.cancel, args=(str(key),), daemon=True).start()


def attend(build: str) -> str:
    """As `Site.attend`, in the worker that dask has chosen."""
    worker = get_worker()
    plugin = worker.plugins[PLUGIN]
    assert isinstance(plugin, Has)
    return plugin.site.attend(build, str(worker.get_current_task()))


def facts(
    folder: Path, eps: Mapping[str, Ep] | None, *, name: str | None = None, jobs: int = 0
) -> Facts:
    """What this process says of itself; `folder` is its scratch; `jobs` 0: one for each core."""
    toolchain = Toolchain(FreshDigests())
    cores = len(host.cores()) or os.cpu_count() or 1
    return Facts(
        name=name or f"{socket.gethostname()}:{os.getpid()}",
        epctx=__version__,
        code={name: toolchain.of(*code) for name, code in CODE.items()},
        system=platform.system(),
        machine=platform.machine(),
        cpu=host.cpu(),
        cores=cores,
        jobs=jobs or cores,
        memory=psutil.virtual_memory().total,
        disk=shutil.disk_usage(folder).free,
        eps=eps,
    )


def serve(
    contact: str,
    tls: Security | None,
    shared: Blobs,
    *,
    eps: Mapping[str, Ep] | None = None,
    name: str | None = None,
    jobs: int = 0,
    told: Callable[[str], None] = lambda words: None,
    once: bool = False,
) -> None:
    """Serve the scheduler until a signal ends it; one that is lost is looked for again.

    Args:
        jobs: how many session groups at a time; 0: one for each core.
        told: hears what is told to people.
        once: a scheduler that is lost is the end.

    Raises:
        ProviderUnavailable: there never was a scheduler.
    """
    with tempfile.TemporaryDirectory(prefix="epctx-worker-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        found = facts(folder, eps, name=name, jobs=jobs)
        asyncio.run(_serving(contact, tls, shared, folder, found, told, once=once))


async def _serving(
    contact: str,
    tls: Security | None,
    shared: Blobs,
    folder: Path,
    found: Facts,
    told: Callable[[str], None],
    *,
    once: bool,
) -> None:
    dask.config.set(CALM)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C is an exception there
            loop.add_signal_handler(number, ended.set)
    known, times = False, 0
    while not ended.is_set():
        times += 1
        own = folder / f"s{times}"
        own.mkdir()
        plugin = _Plugin(own, shared, found.eps)
        try:
            async with _worker(contact, tls, own, found, plugin) as worker:
                known = True
                told(f"serves {contact} as {found.name}")
                over = asyncio.ensure_future(ended.wait())
                await asyncio.wait(
                    [over, asyncio.ensure_future(worker.finished())],
                    return_when=asyncio.FIRST_COMPLETED,
                )
        except (OSError, RuntimeError) as error:  # of what a worker of dask cannot start by
            if not known:
                raise unreachable(contact, tls, str(error)) from error
            if isinstance(error, RuntimeError):
                raise
        if once:
            return
        if not ended.is_set():
            told(f"{contact} is gone: looked for again")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _AGAIN)


def _worker(
    contact: str, tls: Security | None, folder: Path, found: Facts, plugin: _Plugin
) -> Worker:
    text = codec.encode(found).decode()
    return Worker(
        contact,
        nthreads=_THREADS,
        name=f"{found.name}-{folder.name}",
        security=tls,
        plugins=(plugin,),
        memory_limit=0,
        local_directory=str(folder / "dask"),
        startup_information={FACTS: lambda worker: text},
        dashboard=False,
        dashboard_address=None,
        death_timeout=_REACHED,
    )
