"""Events of a build, and a snapshot of its progress that is computed from them."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

State = Literal[
    "running", "done", "verified", "built", "up to date", "failed", "skipped", "waiting", "notice"
]


class Event(Struct, frozen=True, kw_only=True):
    """Event of a build.

    Attributes:
        group: `group@target`, or the sender: the manifest's name, `cache`.
        state: `running` and `done` begin and end a stage of `subject`. `verified` and `failed` come
            as soon as they are true of the group; `built` and `skipped` come when all groups are
            published. `waiting` (for another process, as `detail` says) and `notice` (`detail`) end
            no stage.
        subject: the model or sharing group; None for the whole group.
        stage: the stage that `subject` has entered; None with another `state`.
        detail: text for people: the failure, the outputs, or the reason for waiting; for a
            `verified` group, `on generated inputs`, or why numbers were not run; for a running
            stage, its progress, as `numbers: set 1 of 2, about 2 min left`.
    """

    group: str
    state: State
    subject: str | None = None
    stage: str | None = None
    detail: str | None = None


Expect = Callable[[Mapping[str, float | None]], None]
"""Receives, before a build begins, the groups (`group@target`) to build, each with the seconds that
its stages took together when it was compiled last; None if unknown."""

Listener = Callable[[Event], None]
"""Receives events, from several threads, one at a time."""


def notices(listener: Listener) -> Callable[[str], None]:
    """Return a function that sends notices of the cache to a listener."""

    def notice(text: str) -> None:
        listener(Event(group="cache", state="notice", detail=text))

    return notice


_ENDS: Final[frozenset[State]] = frozenset({"verified", "built", "up to date", "failed", "skipped"})


class Running(Struct, frozen=True, kw_only=True):
    """Running stage.

    Attributes:
        subject: as in `Event`.
        seconds: time since it began.
        detail: its progress, for people; None if unknown.
    """

    group: str
    subject: str | None
    stage: str
    seconds: float
    detail: str | None


class Snapshot(Struct, frozen=True, kw_only=True):
    """Snapshot of a build's progress.

    Attributes:
        running: running stages, the longest first.
        states: number of groups that ended in each state.
        groups: number of groups; None if unknown.
        seconds: time since the build began.
        left: estimate of the remaining seconds; None if unknown, or less than one.
    """

    running: tuple[Running, ...]
    states: Mapping[State, int]
    groups: int | None
    seconds: float
    left: float | None

    @property
    def done(self) -> int:
        """Number of groups that have ended."""
        return sum(self.states.values())


class Tally:
    """Counts a build's events. Thread-safe.

    Args:
        clock: returns seconds; only differences matter.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._lock = threading.Lock()
        self._expected: dict[str, float | None] = {}
        self._running: dict[tuple[str, str | None], Running] = {}
        """Running stages by group and subject; `seconds` is the time when each began."""
        self._states: dict[str, State] = {}
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._at_once = 1

    def expect(self, groups: Mapping[str, float | None]) -> None:
        """Note groups that will be built, as `Expect`."""
        with self._lock:
            self._expected.update(groups)

    def hear(self, event: Event) -> None:
        """Count an event."""
        with self._lock:
            if event.state == "running":
                self._enter(event)
            elif event.state == "done":
                self._leave(event)
            elif event.state in _ENDS:
                self._states[event.group] = event.state

    def snapshot(self) -> Snapshot:
        """Return the present progress."""
        with self._lock:
            now = self._clock()
            running = [replace(r, seconds=now - r.seconds) for r in self._running.values()]
            groups = len(self._expected | self._states) if self._expected else None
            return Snapshot(
                running=tuple(sorted(running, key=lambda each: -each.seconds)),
                states=Counter(self._states.values()),
                groups=groups,
                seconds=now - self._begun,
                left=self._left(running),
            )

    def _enter(self, event: Event) -> None:
        key = (event.group, event.subject)
        before = self._running.get(key)
        if before is not None and before.stage == event.stage:
            self._running[key] = replace(before, detail=event.detail)
            return
        self._leave(event)
        self._running[key] = Running(
            group=event.group,
            subject=event.subject,
            stage=event.stage or "",
            seconds=self._clock(),
            detail=event.detail,
        )
        self._at_once = max(self._at_once, len(self._running))

    def _leave(self, event: Event) -> None:
        ended = self._running.pop((event.group, event.subject), None)
        if ended is not None:
            self._spent[event.group] += self._clock() - ended.seconds

    def _left(self, running: list[Running]) -> float | None:
        """Estimate the remaining time: the remaining work, divided by the number of parallel jobs.

        A group without a known time takes the mean of those that are done.
        """
        known_times = [self._spent[name] for name in self._expected if name in self._states]
        usual = fmean(known_times) if known_times else None
        spent = self._spent.copy()
        for each in running:
            spent[each.group] += each.seconds
        remaining = []
        for name, seconds in self._expected.items():
            whole = usual if seconds is None else seconds
            if name in self._states:
                continue
            if whole is None:
                return None
            remaining.append(max(0.0, whole - spent[name]))
        seconds = sum(remaining) / min(self._at_once, max(1, len(running), len(remaining)))
        return seconds if seconds >= 1 else None
