"""Cluster on this machine: a scheduler in this process, and workers that end with it.

`python -m epctx.machines.local` is a worker. It reads its settings as one line of JSON from stdin,
and ends when stdin ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from epctx import codec
from epctx.machines import address
from epctx.machines.cluster import SILENT
from epctx.machines.messages import CALM
from epctx.providers.onnxruntime import host, supervisor
from epctx.providers.onnxruntime.native_process import NativeProcess

if TYPE_CHECKING:
    from distributed.security import Security

_LOOK: Final = 0.5
"""Seconds between two checks of the workers."""
_MOST: Final = 200
"""Maximum number of workers to start, with replacements."""


class Start(Struct, frozen=True, kw_only=True):
    """Settings of a worker: the scheduler, the shared store, and PEM texts for this build."""

    contact: str
    store: str
    name: str
    jobs: int
    ca: str
    cert: str
    key: str


class Workers:
    """Worker processes; one that ends is replaced.

    Args:
        logs: folder for their output.
        scratch: folder for their temporary files, which they leave there when they are killed.
    """

    def __init__(self, start: Start, count: int, logs: Path, scratch: Path) -> None:
        self._start = start
        self._logs = logs
        self._variables = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
        self._over = threading.Event()
        self._started = 0
        self._running = [self._new() for _ in range(count)]
        self._thread = threading.Thread(target=self._watch, name="epctx-workers", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Last output of a worker, if none runs; None if one does."""
        if self._started < _MOST and any(each.poll() is None for each in self._running):
            return None
        logs = sorted(self._logs.iterdir(), key=lambda path: path.stat().st_mtime)
        return logs[-1].read_text(errors="replace")[-2000:] if logs else ""

    def close(self) -> None:
        """End all workers."""
        self._over.set()
        self._thread.join()
        for process in self._running:
            process.end()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK):
            for number, process in enumerate(self._running):
                if process.poll() is not None and self._started < _MOST:
                    process.end_rest()
                    with suppress(OSError):  # the next check tries again
                        self._running[number] = self._new()

    def _new(self) -> NativeProcess:
        self._started += 1
        name = f"local-{self._started}"
        with (self._logs / name).open("wb") as log:
            process = NativeProcess(
                [sys.executable, "-P", "-m", "epctx.machines.local"],
                variables=self._variables,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                apart=True,
            )
        assert process.stdin is not None
        start = replace(self._start, name=name)
        process.stdin.write(codec.encode(start) + b"\n")
        process.stdin.flush()
        return process


@contextmanager
def cluster(count: int) -> Iterator[tuple[str, Security, Workers, str]]:
    """Start a scheduler with workers; yield its address, security, workers and shared store."""
    import dask
    from distributed import LocalCluster
    from distributed.security import Security

    dask.config.set(CALM)
    safe = Security.temporary()
    keys = {"ca": safe.tls_ca_file, "cert": safe.tls_worker_cert, "key": safe.tls_worker_key}
    with (
        tempfile.TemporaryDirectory(prefix="epctx-local-", ignore_cleanup_errors=True) as folder,
        LocalCluster(
            n_workers=0,
            processes=False,
            host="127.0.0.1",
            protocol="tls://",
            security=safe,
            dashboard_address=None,
            scheduler_kwargs={
                "dashboard_address": "127.0.0.1:0",  # for two builds at a time
                "local_directory": folder,
            },
            silence_logs=SILENT,
        ) as scheduler,
    ):
        contact = scheduler.scheduler_address
        logs, shared, scratch = map(Path(folder).joinpath, "lst")
        for each in (logs, shared, scratch):
            each.mkdir()
        jobs = max(1, (len(host.cores()) or os.cpu_count() or 1) // count)
        start = Start(contact=contact, store=shared.as_uri(), name="", jobs=jobs, **keys)
        workers = Workers(start, count, logs, scratch)
        try:
            yield contact, safe, workers, start.store
        finally:
            workers.close()


def main() -> None:
    """Serve until stdin ends."""
    supervisor.supervise()  # before a second thread exists
    from epctx.machines import serving

    start = codec.decode(sys.stdin.buffer.readline(), Start)

    def follow() -> None:
        os.read(0, 1)
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()
    security = address.security(start.ca, start.cert, start.key)
    serving.serve(start.contact, security, start.store, name=start.name, jobs=start.jobs, once=True)


if __name__ == "__main__":
    main()
