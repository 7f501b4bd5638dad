"""A sample of mutated models; `make soak` tries more (EPCTX_FUZZ_MUTATED of them)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epctx.actions.optimize import Optimize, OptimizeResult
from epctx.errors import CompileError
from tests.fuzz import mutated


@pytest.fixture(autouse=True)
def _low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_NATIVE_MEMORY", str(500 << 20))
    monkeypatch.setenv("EPCTX_LIMIT_NATIVE_SECONDS", "20")


def test_a_sample_and_what_once_was_found(tmp_path: Path) -> None:
    assert list(mutated.findings(range(40, 48), tmp_path)) == []


@pytest.mark.soak
def test_many(tmp_path: Path) -> None:
    count = int(os.environ.get("EPCTX_FUZZ_MUTATED", "1000"))
    assert list(mutated.findings(range(1000, 1000 + count), tmp_path)) == []


def test_a_crash_that_nothing_watches_is_found(tmp_path: Path) -> None:
    def crash(job: Optimize) -> OptimizeResult:
        raise CompileError("the worker process crashed", remedy="report it")

    found = mutated.finding(mutated.model(0), tmp_path, crash)
    assert found is not None and "the worker process crashed" in found
