import threading
import time

import pytest

from epctx.cache.remote.threads import Threads, wait


def nothing() -> None:
    """Nobody ends the wait."""


def test_calls_are_carried_out_beside_each_other_and_no_more_than_allowed() -> None:
    threads, together = Threads(2, "test"), threading.Barrier(2, timeout=5)
    futures = [threads.submit(together.wait) for _ in range(4)]
    assert sorted(future.result(5) for future in futures) == [0, 0, 1, 1]
    named = [thread for thread in threading.enumerate() if thread.name == "test"]
    assert len(named) <= 2
    assert all(thread.daemon for thread in named)


def test_threads_end_when_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epctx.cache.remote.threads._IDLE", 0.01)
    threads = Threads(2, "ending")
    assert threads.submit(lambda: 1).result(5) == 1
    until = time.monotonic() + 5
    while any(thread.name == "ending" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert threads.submit(lambda: 2).result(5) == 2


def test_what_a_call_raises_is_raised() -> None:
    def fail() -> None:
        raise ValueError("it")

    with pytest.raises(ValueError, match="it"):
        wait(Threads(1, "test").submit(fail), until=time.monotonic() + 5, proceed=nothing)


def test_who_waits_too_long_goes_on() -> None:
    gate = threading.Event()
    future = Threads(1, "test").submit(lambda: gate.wait(30))
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        wait(future, until=begun + 0.2, proceed=nothing)
    assert time.monotonic() - begun < 5
    gate.set()


def test_a_wait_can_be_ended() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    gate = threading.Event()
    future = Threads(1, "test").submit(lambda: gate.wait(30))
    with pytest.raises(KeyboardInterrupt):
        wait(future, until=time.monotonic() + 30, proceed=stop)
    gate.set()
