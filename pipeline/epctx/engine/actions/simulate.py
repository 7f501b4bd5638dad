"""The verification of a group's folder: in one process, or its session groups beside each other.

A simulator takes a core, and minutes; a process takes a second to start. So those session groups of
which much is to be run get a process each, as far as the threads of the build and the memory go.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import wait

from msgspec.structs import replace

from epctx.actions.numbers import Verify
from epctx.engine.actions import checks
from epctx.engine.actions.base import Actions
from epctx.engine.pace import Pace
from epctx.engine.progress import GroupProgress
from epctx.engine.results import joined
from epctx.engine.scheduler import Scheduler
from epctx.engine.state import SessionState
from epctx.verification.findings import FolderReport
from epctx.verification.request import VerifyRequest

_LONG_RUNS = 5.0
"""Seconds, as measured before, that are worth a process of their own."""
_LONG_COMPILE = 1.0
"""Seconds that a compile took whose runs were not measured yet."""


class Simulation:
    """Verifies the folder of one group.

    Args:
        new: the session groups that were not verified before.
        request: of the whole folder.
    """

    def __init__(
        self,
        actions: Actions,
        scheduler: Scheduler,
        progress: GroupProgress,
        new: Sequence[SessionState],
        request: VerifyRequest,
    ) -> None:
        self._actions = actions
        self._scheduler = scheduler
        self._progress = progress
        self._new = new
        self._request = request
        self._lock = threading.Lock()
        self._found: list[tuple[int, FolderReport]] = []

    def run(self) -> FolderReport:
        """What was found.

        Raises:
            EpctxError: what a job raised.
        """
        group = self._progress.planned.group.name
        with checks.lane(self._actions, self._progress) as lane:
            alone = lane.own and "numbers" in self._request.policies
            parts = self._parts() if alone else []
            if not parts:
                return self._job(group, self._request, self._new)
            policies = tuple(name for name in self._request.policies if name != "numbers")
            request = replace(self._request, policies=policies)
            first = self._progress.run(lane, group, Verify(request=request))
            lane.hand_on()
        self._beside_each_other(parts, first)
        ordered = [report for _, report in sorted(self._found, key=lambda each: each[0])]
        return joined(first.folder, [first, *(replace(each, models=()) for each in ordered)])

    def _parts(self) -> list[list[SessionState]]:
        """The session groups, each apart of which much is to be run; nothing where that gains no
        time.
        """
        apart = [[each] for each in self._new if self._is_long(each)]
        together = [each for each in self._new if [each] not in apart]
        if len(apart) < 2:
            return []
        return [*apart, together] if together else apart

    def _is_long(self, session: SessionState) -> bool:
        pace, settings = self._pace([session]), self._progress.planned.group.verify.inputs
        known = [pace.find(model) for model in pace.compiled]
        if all(known):
            sets = len(settings.files) or settings.count
            return sum(each.seconds * sets for each in known if each) >= _LONG_RUNS
        label = session.session.label
        stages = [each for each in self._progress.stages if each.subject == label]
        return sum(e.end - e.start for e in stages if e.stage == "compile") >= _LONG_COMPILE

    def _beside_each_other(
        self, parts: Sequence[Sequence[SessionState]], first: FolderReport
    ) -> None:
        begun, left = time.monotonic(), deque(enumerate(parts))

        def work() -> None:
            while left:
                try:
                    number, part = left.popleft()
                except IndexError:  # another thread was quicker
                    return
                files = {name for each in part for name in each.outputs}
                others = {n for each in self._new for n in each.outputs} - files
                request = replace(
                    self._request,
                    policies=("numbers",),
                    earlier=first.findings,
                    passed=(*self._request.passed, *sorted(others)),
                    spent=time.monotonic() - begun,
                )
                found = self._job(part[0].session.label, request, part)
                with self._lock:
                    self._found.append((number, found))

        helpers = [self._scheduler.submit(work) for _ in parts[1:]]
        try:
            work()
        finally:
            left.clear()
            wait([helper for helper in helpers if not helper.cancel()])
        for helper in helpers:
            if not helper.cancelled():
                helper.result()

    def _job(
        self, subject: str, request: VerifyRequest, part: Sequence[SessionState]
    ) -> FolderReport:
        pace = self._pace(part)
        with checks.lane(self._actions, self._progress) as lane:
            if not lane.own:
                return self._progress.run(lane, subject, Verify(request=request), pace=pace)
            with self._actions.room.taken(self._size(pace)):
                return self._progress.run(lane, subject, Verify(request=request), pace=pace)

    def _size(self, pace: Pace) -> int:
        """The bytes that a process will need: as measured before, else as the compile did."""
        known = [found.peak_memory for model in pace.compiled if (found := pace.find(model))]
        return max(known, default=self._progress.peak_memory)

    def _pace(self, part: Sequence[SessionState]) -> Pace:
        return self._actions.pace(part)
