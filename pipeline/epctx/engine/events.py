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
    """Something happened.

    Attributes:
        group: `group@target`, or who speaks: the manifest's name, `cache`.
        state: `running` until `done`: a stage of `subject`. `verified`, `failed`: the group, when
            it happens; `built`, `skipped`: after all groups, when they are published. `waiting`
            for another process, and `notice` of `detail`, end nothing.
        subject: the model or sharing group; None: the whole group.
        stage: the stage that `subject` has entered; None with another `state`.
        detail: for people: what failed, what was built, what is waited for; of a `verified` group,
            `on generated inputs`, or that numbers were not run, and why; of a stage that runs, how
            far it is: `numbers: set 1 of 2, about 2 min left`.
    """

    group: str
    state: State
    subject: str | None = None
    stage: str | None = None
    detail: str | None = None


Expect = Callable[[Mapping[str, float | None]], None]
"""Hears, before a build begins, of each group (`group@target`) that it is going to build: how many
seconds its stages took together when it was compiled last; None: nobody knows."""

Listener = Callable[[Event], None]
"""Hears of events, from several threads, one at a time."""


def notices(listener: Listener) -> Callable[[str], None]:
    """Tells a listener what the cache has to say."""

    def notice(text: str) -> None:
        listener(Event(group="cache", state="notice", detail=text))

    return notice


_ENDS: Final[frozenset[State]] = frozenset({"verified", "built", "up to date", "failed", "skipped"})


class Running(Struct, frozen=True, kw_only=True):
    """A stage that runs.

    Attributes:
        subject: as of an event; None: the whole group.
        seconds: for how long.
        detail: how far it is, for people; None: it does not say.
    """

    group: str
    subject: str | None
    stage: str
    seconds: float
    detail: str | None


class Snapshot(Struct, frozen=True, kw_only=True):
    """How far a build has come.

    Attributes:
        running: what has run longest comes first.
        states: how many groups ended in which state.
        groups: how many there are; None: nobody said.
        seconds: since the beginning.
        left: about how many seconds more it takes; None: nobody knows, or next to none.
    """

    running: tuple[Running, ...]
    states: Mapping[State, int]
    groups: int | None
    seconds: float
    left: float | None

    @property
    def done(self) -> int:
        """How many groups have ended."""
        return sum(self.states.values())


class Tally:
    """Counts a build's events. Thread-safe.

    Args:
        clock: seconds, of which only differences matter.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._lock = threading.Lock()
        self._expected: dict[str, float | None] = {}
        self._running: dict[tuple[str, str | None], Running] = {}
        """Here `seconds` is when it began."""
        self._states: dict[str, State] = {}
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._at_once = 1

    def expect(self, groups: Mapping[str, float | None]) -> None:
        """These groups will be built; as of `events.Expect`."""
        with self._lock:
            self._expected.update(groups)

    def hear(self, event: Event) -> None:
        """Something happened."""
        with self._lock:
            if event.state == "running":
                self._enter(event)
            elif event.state == "done":
                self._leave(event)
            elif event.state in _ENDS:
                self._states[event.group] = event.state

    def snapshot(self) -> Snapshot:
        """How far it is now."""
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
        """The work that is left, shared among as many as worked at a time so far.

        A group that nobody knows takes what those took that are done.
        """
        done = [self._spent[name] for name in self._expected if name in self._states]
        usual = fmean(done) if done else None
        spent = self._spent.copy()
        for each in running:
            spent[each.group] += each.seconds
        left = []
        for name, seconds in self._expected.items():
            whole = usual if seconds is None else seconds
            if name in self._states:
                continue
            if whole is None:
                return None
            left.append(max(0.0, whole - spent[name]))
        seconds = sum(left) / min(self._at_once, max(1, len(running), len(left)))
        return seconds if seconds >= 1 else None
