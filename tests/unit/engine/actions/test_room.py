"""Who may run beside whom, where memory is what a test says it is."""

from __future__ import annotations

import threading

import pytest

from epctx.engine.actions import room
from epctx.engine.actions.room import Room


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_available", lambda: 100)


def test_what_fits_runs_at_once_and_what_does_not_waits(free: None) -> None:
    shared, entered = Room(), threading.Event()

    def late() -> None:
        with shared.taken(50):
            entered.set()

    with shared.taken(60), shared.taken(40):
        waiting = threading.Thread(target=late)
        waiting.start()
        assert not entered.wait(0.2)
    assert entered.wait(5)
    waiting.join()


def test_one_may_always_run(free: None) -> None:
    with Room().taken(1000):
        pass


def test_what_others_are_known_to_need_is_not_free(free: None) -> None:
    shared = Room()
    assert shared.has(100) and not shared.has(101)
    with shared.taken(60):
        assert shared.has(40) and not shared.has(41)
