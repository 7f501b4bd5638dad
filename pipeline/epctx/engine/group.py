"""One group of a build while it is built: its jobs, what they took, what is told of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from epctx.engine.events import Event, Listener, State
from epctx.engine.plan import PlannedGroup
from epctx.engine.report import ActionReport, StageTime
from epctx.files.digest import Digest
from epctx.worker.jobs import Job, StageStarted
from epctx.worker.process import Worker

R = TypeVar("R")


class Telling:
    """Tells a build's events, one at a time, and knows how long it takes. Thread-safe."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._begun = time.monotonic()

    def tell(self, event: Event) -> None:
        """Tell an event."""
        with self._lock:
            self._listener(event)

    def now(self) -> float:
        """Seconds since the build began."""
        return time.monotonic() - self._begun


class Progress:
    """What has happened to one group so far. Used by the threads of its session groups.

    Attributes:
        stages: when they ran.
        actions: what was carried out, and what was there.
        peak_memory: largest resident size of a worker that worked for it, in bytes.
    """

    def __init__(self, planned: PlannedGroup, telling: Telling) -> None:
        self.planned = planned
        self.stages: list[StageTime] = []
        self.actions: list[ActionReport] = []
        self.peak_memory = 0
        self._telling = telling
        self._lock = threading.Lock()

    def run(self, worker: Worker, subject: str, job: Job, result: type[R]) -> R:
        """Have a worker carry out a job for `subject`. Raises what `Worker.run` raises."""
        stage: str | None = None
        shown: str | None = None
        begun = 0.0

        def note(now: float) -> None:
            if stage is not None:
                with self._lock:
                    self.stages.append(
                        StageTime(stage=stage, subject=subject, start=begun, end=now)
                    )

        def show(next_: str | None) -> None:
            nonlocal shown
            if shown is not None and shown != next_:
                self.tell("done", subject=shown)
            shown = next_

        def started(entered: StageStarted) -> None:
            nonlocal stage, begun
            again = entered.stage == stage
            if again and (stage == "verify" or (entered.model or subject) == shown):
                return  # another EP's turn, or another input: told for crashes, not for people
            note(now := self._telling.now())
            stage, begun = entered.stage, now
            show(entered.model or subject)
            self.tell("running", subject=shown, stage=stage)

        try:
            return worker.run(job, result, started=started, timeout=self.planned.group.timeout)
        finally:
            note(self._telling.now())
            show(None)

    def remember(self, peak_memory: int) -> None:
        """Note how large a worker was."""
        with self._lock:
            self.peak_memory = max(self.peak_memory, peak_memory)

    def did(self, action: str, subject: str, key: Digest | None, *, ran: bool) -> None:
        """Note that an action was carried out, or was in the cache."""
        name = None if key is None else str(key)
        with self._lock:
            self.actions.append(ActionReport(action=action, subject=subject, key=name, ran=ran))

    def tell(
        self,
        state: State,
        *,
        subject: str | None = None,
        stage: str | None = None,
        detail: str | None = None,
    ) -> None:
        """Tell an event of this group."""
        self._telling.tell(
            Event(
                group=self.planned.label, state=state, subject=subject, stage=stage, detail=detail
            )
        )

    def waiting(self, what: str, subject: str, proceed: Callable[[], None]) -> Callable[[], None]:
        """To be called while another process is waited for; tells it once.

        Args:
            what: what the other does.
            proceed: raises when there is no point in waiting any more.
        """
        told = False

        def wait() -> None:
            nonlocal told
            proceed()
            if not told:
                self.tell("waiting", subject=subject, detail=what)
            told = True

        return wait
