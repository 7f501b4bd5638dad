from __future__ import annotations

import pytest

from epctx.providers.onnxruntime import crash


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-11, "ended by SIGSEGV, an invalid memory access"),
        (-8, "ended by SIGFPE, an integer division by zero: does a tensor have a dimension of 0?"),
        (-6, "ended by SIGABRT"),
        (-9, "when memory runs out"),
        (0xC0000005, "ended by SIGSEGV (status 0xc0000005)"),
        (-1073741819, "ended by SIGSEGV (status 0xc0000005)"),
        (-250, "ended by signal 250"),
    ],
)
def test_signals_and_statuses_in_words(code: int, words: str) -> None:
    assert words in (crash.describe(code) or "")


@pytest.mark.parametrize("code", [0, 1, 137])
def test_a_process_that_ended_by_itself_did_not_crash(code: int) -> None:
    assert crash.describe(code) is None
