"""In a worker process of another machine: SIGKILL of that machine's `epctx worker`, in a stage.

Files in the folder `ends` beside its temporary files say in which: `compile-1` is good for one. The
temporary files of a local cluster's workers are two levels lower.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

if "epctx.worker" in sys.orig_argv:
    from epctx.stages import compile, load, optimize, partition, verify

    def ending(stage: str, run: Callable[..., object]) -> Callable[..., object]:
        def ended(*arguments: object, **rest: object) -> object:
            own = Path(os.environ["TMPDIR"])
            folders = (own, own.parents[1])
            for file in sorted(f for each in folders for f in each.glob(f"ends/{stage}-*")):
                file.unlink(missing_ok=True)
                supervisor = psutil.Process().parent()
                machine = supervisor.parent() if supervisor is not None else None
                if machine is not None:
                    machine.send_signal(signal.SIGKILL)
                time.sleep(600)
            return run(*arguments, **rest)

        return ended

    modules = (load, optimize, partition, compile, verify)
    runs = [(module.__name__.rpartition(".")[2], module, "run") for module in modules]
    for stage, module, name in [*runs, ("dump", compile, "dump")]:
        vars(module)[name] = ending(stage, vars(module)[name])
