"""Who may run beside whom, where memory is what a test says it is."""

from __future__ import annotations

import threading

import psutil
import pytest

from epctx.errors import CompileError
from epctx.worker import memory
from epctx.worker.memory import MemoryBudget


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_available", lambda: 100)


def test_what_fits_runs_at_once_and_what_does_not_waits(free: None) -> None:
    shared, entered = MemoryBudget(), threading.Event()

    def late() -> None:
        with shared.reserved(50):
            entered.set()

    with shared.reserved(60), shared.reserved(40):
        waiting = threading.Thread(target=late)
        waiting.start()
        assert not entered.wait(0.2)
    assert entered.wait(5)
    waiting.join()


def test_one_may_always_run(free: None) -> None:
    with MemoryBudget().reserved(1000):
        pass


def test_what_this_machine_cannot_hold_is_refused_with_a_size_that_fits(free: None) -> None:
    machine = psutil.virtual_memory().total + psutil.swap_memory().total
    with (
        pytest.raises(CompileError, match="is estimated to take") as told,
        MemoryBudget().reserved(2 * machine),
    ):
        pass
    assert told.value.code == "E0602"
    proposed = max(1, psutil.virtual_memory().total // 4 // 10**9)
    assert f"max_memory: {proposed}GB" in told.value.remedy
