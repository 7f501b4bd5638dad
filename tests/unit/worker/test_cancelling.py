"""Ended from any thread: what runs, and what is to come."""

from __future__ import annotations

import pytest

from epctx.errors import CompileError, EpctxError
from epctx.worker.cancelling import Cancelling

FIRST = CompileError("the first", remedy="none")


def test_what_runs_is_ended_and_what_is_to_come_is_refused() -> None:
    ended: list[tuple[str, EpctxError]] = []
    known = Cancelling[str](lambda each, reason: ended.append((each, reason)))
    with known.running(lambda: "over"):
        known.refuse()
    with known.running(lambda: "one"), known.running(lambda: "other"):
        known.cancel(FIRST)
        known.cancel(CompileError("the second", remedy="none"))
    assert ended == [("one", FIRST), ("other", FIRST)] * 2
    with pytest.raises(CompileError, match="the first"):
        known.refuse()
    begun: list[str] = []
    with pytest.raises(CompileError, match="the first"), known.running(lambda: begun.pop()):
        raise AssertionError("it was cancelled before")


def test_what_fails_to_begin_does_not_run() -> None:
    ended: list[object] = []
    known = Cancelling[object](lambda each, reason: ended.append(each))
    with pytest.raises(ZeroDivisionError), known.running(lambda: 1 / 0):
        raise AssertionError("it did not begin")
    known.cancel(FIRST)
    assert not ended and known.reason is FIRST
