"""A job: its actions in order, what stays open for whom, what was finished before a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from epctx.actions.action import Action, WorkerContext, carry_out
from epctx.errors import CompileError

HEARD: list[str] = []


class Open(Action[str], frozen=True, kw_only=True):
    """Opens a session, which stays open if the next action wants it."""

    result = str
    name: str

    @contextmanager
    def session(self) -> Iterator[None]:
        HEARD.append(f"open {self.name}")
        yield
        HEARD.append(f"close {self.name}")

    def run(self, worker: WorkerContext) -> str:
        worker.sessions.enter_context(self.session())
        worker.live = self.name
        return f"{self.name}, wanted: {worker.kept_open}"


class Use(Action[str], frozen=True, kw_only=True):
    """Uses the session that is open; or fails."""

    result = str
    within = Open
    error: str = ""

    def run(self, worker: WorkerContext) -> str:
        HEARD.append(f"use {worker.live}")
        if self.error == "disk":
            raise OSError(28, "No space left on device")
        if self.error:
            raise CompileError(self.error, remedy="none")
        return f"used {worker.live} after {worker.last(str)}"


class After(Action[int], frozen=True, kw_only=True):
    """Tells how many results there were, and that nothing is open."""

    result = int

    def run(self, worker: WorkerContext) -> int:
        HEARD.append(f"after, {worker.live}")
        return len(worker.done)


@pytest.fixture(autouse=True)
def _heard() -> None:
    HEARD.clear()


def test_what_is_within_an_action_finds_open_what_that_opened() -> None:
    job: list[Action[Any]] = [Open(name="a"), Use(), After(), Open(name="b"), After()]
    results = list(carry_out(job, lambda stage: None))
    used = "used a after a, wanted: True"
    assert results == ["a, wanted: True", used, 2, "b, wanted: False", 4]
    first = ["open a", "use a", "close a", "after, None"]
    assert [*first, "open b", "close b", "after, None"] == HEARD
