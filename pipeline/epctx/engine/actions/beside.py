"""The models of one session group, loaded and optimized beside each other where that gains time.

A process takes a third of a second to start, and a small model a tenth of that. So another worker
takes models only of a group that is still at it when one could have started, on a thread of the
build that has nothing else to do. It is the one that will verify the group, where there will be
one.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, wait
from typing import Final

from epctx.engine.actions import checks
from epctx.engine.actions.base import Actions
from epctx.engine.actions.optimize import Ahead, alone
from epctx.engine.actions.quantize import Quantizing
from epctx.engine.executor import Cancelled, Lane
from epctx.engine.plan import SessionGroup
from epctx.engine.progress import GroupProgress
from epctx.engine.scheduler import Scheduler
from epctx.engine.state import ModelState

_START: Final = 0.3
"""Seconds that a worker takes to start."""


class SideBySide:
    """Optimizes the models of one session group, once.

    Args:
        quantizing: of the build.
        scheduler: whose threads help, as far as they are free.
    """

    def __init__(
        self,
        actions: Actions,
        quantizing: Quantizing,
        scheduler: Scheduler,
        progress: GroupProgress,
        session: SessionGroup,
    ) -> None:
        self._actions = actions
        self._quantizing = quantizing
        self._scheduler = scheduler
        self._progress = progress
        self._models = session.models
        self._left = deque(enumerate(session.models))
        self._helpers: list[Future[None]] = []
        self._over = threading.Event()
        self._found: dict[int, ModelState] = {}
        self._failed: dict[int, Exception] = {}

    def run(self, lane: Lane) -> tuple[ModelState, ...]:
        """The models in order, of which this thread optimizes the first in `lane`.

        Raises:
            EpctxError: what the job of the first model raised that failed.
        """
        try:
            self._work(lane, lambda: self._call_helpers(lane))
        finally:
            self._over.set()
            wait([helper for helper in self._helpers if not helper.cancel()])
        for helper in self._helpers:
            if not helper.cancelled():
                helper.result()
        if self._failed:
            raise min(self._failed.items(), key=lambda each: (_is_ended(each[1]), each[0]))[1]
        return tuple(self._found[number] for number in range(len(self._models)))

    def _work(self, lane: Lane, ahead: Ahead) -> None:
        while self._left:
            try:
                number, source = self._left.popleft()
            except IndexError:  # another thread was quicker
                return
            try:
                found = self._quantizing.model(self._progress, source, lane, ahead)
            except Exception as error:
                self._failed[number] = error
                self._left.clear()
                return
            self._found[number] = found

    def _call_helpers(self, lane: Lane) -> None:
        """A job is to be carried out, once: more may follow."""
        if self._helpers or not self._left:
            return
        lane.start()  # the worker that has been started already is for this thread
        helps = [self._verifying if self._verifies(lane) else self._sharing]
        helps += [self._sharing] * (len(self._left) - 1)
        self._helpers = [self._scheduler.submit(help_) for help_ in helps]

    def _verifies(self, lane: Lane) -> bool:
        return lane.own and self._actions.lookup.runs(self._progress.planned.group)

    def _verifying(self) -> None:
        """Help by the worker that will verify the group."""
        checks.expect(self._actions, self._progress)
        if self._are_many_left():
            with checks.lane(self._actions, self._progress) as lane:
                self._work(lane, alone)
                lane.hand_on()

    def _sharing(self) -> None:
        """Help by any worker."""
        if self._are_many_left():
            with self._actions.shared_lane() as lane:
                self._work(lane, alone)

    def _are_many_left(self) -> bool:
        """Whether there is work, and memory, for another worker when one could have started."""
        if self._over.wait(_START):
            return False
        paths = [source.path for _, source in [*self._left]]
        return self._actions.room.has(sum(path.stat().st_size for path in paths if path.exists()))


def _is_ended(error: Exception) -> bool:
    """Whether another one's failure, or the user, is what ended it."""
    return isinstance(error, Cancelled)
