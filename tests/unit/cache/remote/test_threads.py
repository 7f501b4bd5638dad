import threading
import time

import pytest

from epctx.cache.remote.threads import Threads, wait


def nothing() -> None:
    """Nobody ends the wait."""


def test_threads_end_when_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epctx.cache.remote.threads._IDLE", 0.01)
    threads = Threads(2, "ending")
    assert threads.submit(lambda: 1).result() == 1
    while any(thread.name == "ending" for thread in threading.enumerate()):
        time.sleep(0.01)
    assert threads.submit(lambda: 2).result() == 2


def test_who_waits_too_long_goes_on() -> None:
    gate = threading.Event()
    future = Threads(1, "test").submit(lambda: gate.wait(30))
    with pytest.raises(TimeoutError):
        wait(future, until=time.monotonic() + 0.2, proceed=nothing)
    gate.set()


def test_a_wait_can_be_ended() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    gate = threading.Event()
    future = Threads(1, "test").submit(lambda: gate.wait(30))
    with pytest.raises(KeyboardInterrupt):
        wait(future, until=time.monotonic() + 30, proceed=stop)
    gate.set()
