"""A worker without a process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from epctx import codec
from epctx.worker import dispatch, protocol
from epctx.worker.jobs import Job, StageStarted
from epctx.worker.protocol import Message

R = TypeVar("R")


class Inline:
    """A worker without a process: the same jobs, by the same code, encoded and decoded alike.

    For rows whose fault is in a file, a process each would cost minutes and show nothing more; the
    rows of `workers` and `process` have real ones.
    """

    def __init__(
        self, folder: Path, log: Path, place: int | None = None, *, variables: object = None
    ) -> None:
        folder.mkdir(parents=True)
        self.log = log
        log.touch()
        self.expired = False

    @property
    def alive(self) -> bool:
        """It never ends."""
        return True

    def run(
        self,
        job: Job,
        result: type[R],
        *,
        started: Callable[[StageStarted], None],
        timeout: float | None = None,
    ) -> R:
        """As `epctx.worker.process.Worker.run`."""
        message = Message(kind=type(job).__name__, job=msgspec.Raw(codec.encode(job)))
        try:
            answer = dispatch.execute(message, started)
        except Exception as error:
            raise protocol.restore(protocol.report(error), log=self.log) from error
        return codec.decode(codec.encode(answer), result)

    def dismiss(self) -> None:
        """Nothing has to end."""

    def close(self) -> None:
        """Nothing has to end."""

    def kill(self, reason: object = None) -> None:
        """Nothing has to end."""
