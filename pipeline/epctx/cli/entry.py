"""The entry point `epctx`: what is done before the command line is imported."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import Final

from epctx.cli import arguments, streams
from epctx.engine import noop

_ALLOCATIONS: Final = 1_000_000
"""After so many that were not freed, garbage is looked for: modules and manifests are none."""


def main() -> None:
    """Say what a build that has nothing to do said before; else run the command line.

    Either a worker or the command line imports for a quarter of a second and more: a build's first
    worker starts before the command line is imported.
    """
    # numpy's threads, of which no command has a use here, begin by spinning: a third of its import.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    streams.open_closed()
    sys.argv[1:] = arguments.normal(sys.argv[1:])
    said = noop.recall(sys.argv[1:])
    if said is not None:
        with streams.guarded():
            sys.stdout.write("".join(f"{line}\n" for line in said))
        return
    atexit.register(gc.freeze)  # what the end of the process frees anyway is not looked for
    if sys.argv[1:2] == ["build"] and not {"-h", "--help", "--dry-run"} & set(sys.argv):
        from epctx.worker import spare

        spare.start()  # something is to be done: else it was known
    gc.set_threshold(_ALLOCATIONS)
    from epctx.cli.app import app

    app(prog_name="epctx")
