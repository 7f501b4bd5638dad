"""Machines for a build: a scheduler and workers on loopback, each a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.kit.command_line import PROGRAM, environment

ENDING = Path(__file__).parents[1] / "faults" / "ending"
"""Ends the machine that works, in a stage that a file names: for `PYTHONPATH`."""
LYING = ENDING.parent / "lying"
"""A machine that answers what `EPCTX_TEST_LIES` says: for `PYTHONPATH`."""
_STARTS = 300.0


class Machines:
    """A scheduler and workers, which share the folder `shared`; each has a cache of its own."""

    def __init__(self, folder: Path, *options: str, **variables: str) -> None:
        self.folder = folder
        self.port = _free_port()
        self.options = options
        (folder / "tmp").mkdir(parents=True)
        self.variables = {
            "EPCTX_REMOTE_CACHE": f"file://{(folder / 'shared').as_posix()}",
            "TMPDIR": str(folder / "tmp"),
            **variables,
        }
        self.workers: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start("scheduler", sys.executable, *self._scheduler())

    @property
    def url(self) -> str:
        return f"dask://127.0.0.1:{self.port}"

    def worker(self, **variables: str) -> subprocess.Popen[bytes]:
        """One more; it is there when this returns."""
        name = f"w{len(self.workers)}"
        own = {"EPCTX_CACHE_DIR": str(self.folder / f"cache-{name}"), **variables}
        process = self._start(
            name, *PROGRAM, "worker", self.url, "--name", name, "--jobs", "1", *self.options, **own
        )
        self.workers.append(process)
        self.wait_for(name, "serves ")
        return process

    @property
    def names(self) -> list[str]:
        """Of the workers that are there."""
        return [f"w{number}" for number, each in enumerate(self.workers) if each.poll() is None]

    def kill(self, *, of: psutil.Process) -> str:
        """Kill the worker of a process of it, and tell its name."""
        parents = {each.pid for each in of.parents()}
        (number,) = [n for n, each in enumerate(self.workers) if each.pid in parents]
        self.workers[number].kill()
        self.workers[number].wait()
        return f"w{number}"

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def wait_for(self, name: str, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + _STARTS
        while self.log(name).count(text) < times:
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.05)

    def build(self, folder: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
        """A build of `m.yaml` in a folder, that has begun."""
        command = [*PROGRAM, "build", "m.yaml", "--on", self.url, *self.options, *options]
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment(**{**self.variables, **variables}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def children(self) -> list[psutil.Process]:
        """The processes of all workers."""
        return [
            each
            for worker in self.workers
            if psutil.pid_exists(worker.pid)
            for each in psutil.Process(worker.pid).children(recursive=True)
            if each.status() != psutil.STATUS_ZOMBIE
        ]

    def idle(self) -> bool:
        """Whether the workers have ended their processes, within some seconds."""
        deadline = time.monotonic() + 300
        while self.children() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.children()

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in (*self.workers, self.scheduler):
            try:
                process.wait(timeout=300)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _scheduler(self) -> tuple[str, ...]:
        names = {"--tls-ca": "--tls-ca-file"}
        tls = tuple(names.get(each, each) for each in self.options)
        protocol = ("--protocol", "tls") if tls else ()
        return (
            *("-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--no-dashboard"),
            *("--port", str(self.port), "--dashboard-address", "", *protocol, *tls),
        )

    def _start(self, name: str, *command: str, **variables: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                env=environment(**{**self.variables, **variables}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def scheduler_again(self) -> None:
        """The scheduler, at the same place."""
        self.scheduler = self._start("scheduler", sys.executable, *self._scheduler())


@contextmanager
def machines(folder: Path, count: int, *options: str, **variables: str) -> Iterator[Machines]:
    """So many workers."""
    made = Machines(folder, *options, **variables)
    try:
        made.wait_for("scheduler", "Scheduler at")
        for _ in range(count):
            made.worker()
        yield made
    finally:
        made.close()


def ends(folder: Path, *stages: str) -> None:
    """From here on the machine ends that first comes to such a stage, once each."""
    place = folder / "tmp" / "ends"
    place.mkdir(parents=True, exist_ok=True)
    for number, stage in enumerate(stages):
        (place / f"{stage}-{number}").touch()


def left(folder: Path) -> list[str]:
    """Processes with a temporary folder below `folder`: what a build has left behind."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(folder / "tmp") and (
                process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid()
            ):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
