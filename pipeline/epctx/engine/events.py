"""What a user waiting for a build may want to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct

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
