"""A worker process that starts while the command line is still imported.

Either side imports for a quarter of a second, which a short build mostly is. So the command line
starts a worker before it knows what for; the first one that the build needs is that one. If it
needs none, it is ended on the way out.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from epctx.providers.onnxruntime.native_process import NativeProcess
from epctx.worker import sampling
from epctx.worker.environment import environment

_lock = threading.Lock()
_waiting: tuple[NativeProcess, Mapping[str, str]] | None = None


def start() -> None:
    """Start one, in the environment that a build gives its workers."""
    global _waiting
    own = environment({})
    _waiting = launch(own, folder=Path(tempfile.gettempdir()), log=subprocess.DEVNULL), own
    atexit.register(_end)


def take(wanted: Mapping[str, str]) -> NativeProcess | None:
    """The one that was started, once, if it runs in this environment; else None."""
    global _waiting
    with _lock:
        if _waiting is None or _waiting[1] != wanted or _waiting[0].poll() is not None:
            return None
        (taken, _), _waiting = _waiting, None
    return taken


def launch(variables: Mapping[str, str], *, folder: Path, log: IO[bytes] | int) -> NativeProcess:
    """Start a worker process, which waits for jobs.

    Args:
        variables: its environment.
        folder: its current folder.
        log: gets all it prints.
    """
    return NativeProcess(
        [sys.executable, "-P", "-m", "epctx.worker"],
        folder=folder,
        variables={**variables, **sampling.variables()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        apart=True,
    )


def _end() -> None:
    if _waiting is not None:
        _waiting[0].kill()
        _waiting[0].wait()
