"""Process of one build: it applies its circumstances, then builds as `epctx build` does.

Messages go to a copy of stdout, and stdout itself becomes the log. The process ends when its stdin
ends, so it does not outlive its parent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from epctx import codec
from epctx.commands import build
from epctx.commands.reproduce.child import BuildJob, Message
from epctx.commands.reproduce.variations import enter
from epctx.engine.events import Listener
from epctx.engine.options import BuildOptions
from epctx.errors import Interrupted
from epctx.worker import protocol


def main() -> None:
    """Read a job from stdin, and run it."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    job = codec.decode(sys.stdin.buffer.readline(), BuildJob)

    def send(message: Message) -> None:
        answers.write(codec.encode(message) + b"\n")

    obstacles = enter(job.circumstances, folder=job.folder, manifest=job.manifest)
    send(Message(obstacles=obstacles))
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        send(_build(job, lambda event: send(Message(event=event))))
    except KeyboardInterrupt:
        interrupted = Interrupted("interrupted", remedy="run the command again")
        send(Message(error=protocol.report(interrupted)))
    except Exception as error:
        send(Message(error=protocol.report(error)))


def _build(job: BuildJob, hear: Listener) -> Message:
    varied = job.circumstances
    variables = {**varied.variables, **varied.worker_variables}
    result = build.run(
        job.manifest,
        BuildOptions(
            out=job.out, jobs=varied.jobs, numbers=False, requires=False, variables=variables
        ),
        listener=hear,
        only=job.only,
        cached=False,
        allow_outside=job.allow_outside,
    )
    if result.failure is None:
        return Message(report=result.report)
    return Message(error=result.failure.failure)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _die_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)  # this also ends the workers' stdin


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # a thread holds stdin
