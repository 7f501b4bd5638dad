"""A worker without a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, cast

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
        self.killed = False
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
        finished: Callable[[int, Any], None] = lambda number, result: None,
        timeout: float | None = None,
        budget: float | None = None,
    ) -> list[Any]:
        """As `epctx.worker.process.Worker.run`; an action that runs when the budget ends is waited
        for.
        """
        asked = protocol.actions(Message(job=protocol.encode(job)))
        results: list[Any] = []
        answers = cast(Generator[Any, None, None], carry_out(asked, started))
        ends = float("inf")
        for number, action in enumerate(asked):
            if action.bounded and budget is not None:
                ends = min(ends, time.monotonic() + budget)
            if not self._ended(action, ends):
                try:
                    answer = codec.encode(self.answer(next(answers)))
                    result = codec.decode(answer, action.result)
                except Exception as error:
                    raise protocol.restore(protocol.report(error), log=self.log) from error
            if self._ended(action, ends):
                break
            results.append(result)
            finished(number, result)
        if len(results) == len(asked):
            next(answers, None)  # it ends as in a process
        answers.close()
        self.peak_memory = peak_memory()
        return results

    def _ended(self, action: Action[Any], ends: float) -> bool:
        """Tell whether the budget has ended a bounded action."""
        self.expired = self.expired or (action.bounded and time.monotonic() >= ends)
        return self.expired

    def answer(self, result: Any) -> Any:
        """What it says that came of an action."""
        return result

    def dismiss(self) -> None:
        """Nothing has to end."""

    def close(self) -> None:
        """Nothing has to end."""

    def kill(self, reason: object = None) -> None:
        """Nothing has to end."""
