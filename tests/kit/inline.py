"""A worker without a process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from epctx import codec
from epctx.actions.action import Action, StageStarted, carry_out, peak_memory
from epctx.worker import protocol
from epctx.worker.protocol import Message


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
        self.peak_memory = 0

    @property
    def alive(self) -> bool:
        """It never ends."""
        return True

    def run(
        self,
        job: Sequence[Action[Any]],
        *,
        started: Callable[[StageStarted], None],
        timeout: float | None = None,
    ) -> list[Any]:
        """As `epctx.worker.process.Worker.run`."""
        asked = protocol.actions(Message(job=protocol.asked(job)))
        try:
            answers = map(self.answer, carry_out(asked, started))
            results = [
                codec.decode(codec.encode(answer), action.result)
                for action, answer in zip(asked, answers, strict=True)
            ]
        except Exception as error:
            raise protocol.restore(protocol.report(error), log=self.log) from error
        self.peak_memory = peak_memory()
        return results

    def answer(self, result: Any) -> Any:
        """What it says that came of an action."""
        return result

    def dismiss(self) -> None:
        """Nothing has to end."""

    def close(self) -> None:
        """Nothing has to end."""

    def kill(self, reason: object = None) -> None:
        """Nothing has to end."""
