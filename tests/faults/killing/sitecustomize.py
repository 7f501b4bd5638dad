"""In a worker process: SIGKILL in the stage that a model's name says, as `bad_compile`, or SIGABRT,
as `abort_compile`.

In the middle of it, that is: after what the stage does first, `epctx.stages` having been called.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

if "epctx.worker" in sys.orig_argv:
    from epctx.stages import compile, load, optimize, partition, verify

    def killing(stage: str, run: Callable[..., object]) -> Callable[..., object]:
        def killed(*arguments: object, **rest: object) -> object:
            told = repr((arguments, rest))
            if f"bad_{stage}" in told:
                os.kill(os.getpid(), signal.SIGKILL)
            if f"abort_{stage}" in told:
                print("the last words", file=sys.stderr, flush=True)
                os.abort()
            return run(*arguments, **rest)

        return killed

    modules = (load, optimize, partition, compile, verify)
    runs = [(module.__name__.rpartition(".")[2], module, "run") for module in modules]
    for stage, module, name in [*runs, ("dump", compile, "dump")]:
        # Any stage: mypy holds an assignment to the signature of one of them.
        setattr(module, name, killing(stage, getattr(module, name)))
