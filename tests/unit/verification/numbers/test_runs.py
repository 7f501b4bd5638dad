"""The loop that loads, runs and judges files; `test_policy` has what it tells of sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epctx.errors import EpctxError, InvalidGraph, ProviderUnavailable
from epctx.manifest import Tolerance
from epctx.verification.eps import Providers
from epctx.verification.findings import Finding
from epctx.verification.folder import GroupFolder, open_folder
from epctx.verification.numbers import runs, sessions
from epctx.verification.numbers.input_sets import Case
from epctx.verification.numbers.judge import Judge
from epctx.verification.numbers.runs import Budget, Run, Runs
from tests.kit import folders

ONE = np.ones((1, 4), np.float32)


class Session:
    """Gives one output, or raises what it is told to."""

    def __init__(self, log: list[str], failure: Exception | None = None) -> None:
        self.log = log
        self.failure = failure

    def get_outputs(self) -> list[Any]:
        return [type("Output", (), {"name": "z"})]

    def run(self, names: object, feeds: object) -> list[Any]:
        if self.failure is not None:
            raise self.failure
        return [ONE]

    def get_reason_apart(self) -> str | None:
        return None

    def close(self) -> None:
        self.log.append("close")


@pytest.fixture
def folder(tmp_path: Path) -> GroupFolder:
    folders.write(tmp_path / "out", sums=False)
    return open_folder(tmp_path / "out", providers=Providers())


def one(folder: GroupFolder, *labels: str) -> Run:
    (model,) = folder.models
    judge = Judge(
        file=model.file, sessions="files", providers=(), precision="float32", asked=Tolerance()
    )
    cases = [(Case(label=label, feeds={}), {"z": ONE}) for label in labels]
    return Run(model=model, name="m", cases=cases, judge=judge)


def findings(found: Any) -> list[tuple[str, str, str]]:
    return [(f.check, f.outcome, f.message) for f in found if isinstance(f, Finding)]


def test_a_failing_input_set_does_not_end_the_others_and_sessions_are_closed(
    folder: GroupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    lost = RuntimeError("device lost")
    monkeypatch.setattr(sessions, "open_files", lambda *a, **k: Session(log, lost))
    made = Runs(folder, log.append, Budget(None)).run([one(folder, "a", "b")], sharing=False)
    assert findings(made)[1:] == [
        ("runs", "fail", "a: fails where its source runs: device lost"),
        ("runs", "fail", "b: fails where its source runs: device lost"),
    ]
    assert log == ["m", "m", "close"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ProviderUnavailable("no EP", remedy="get it"), ("outputs", "not checkable")),
        (InvalidGraph("is broken", remedy="mend it"), ("loads", "fail")),
        (RuntimeError("no"), ("loads", "fail")),
    ],
)
def test_what_cannot_be_loaded(
    folder: GroupFolder,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    expected: tuple[str, str],
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(sessions, "open_files", refuse)
    made = list(Runs(folder, runs.unheard, Budget(None)).run([one(folder, "a")], sharing=False))
    (found,) = made
    assert isinstance(found, Finding) and (found.check, found.outcome) == expected
    if isinstance(error, EpctxError):
        assert found.remedy == error.remedy
    else:
        assert "`optimize: {level: none}`" in found.remedy


def test_nothing_is_opened_when_the_budget_is_used_up(
    folder: GroupFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "open_files", None)
    made = Runs(folder, runs.unheard, Budget(0.0)).run([one(folder, "a")], sharing=False)
    assert findings(made) == [
        ("outputs", "not checkable", "a: not checked: budget (0 s are used up)")
    ]


def test_what_is_the_same_on_all_input_sets_is_constant() -> None:
    assert runs.constant([{"y": ONE, "z": ONE}, {"y": ONE, "z": 2 * ONE}]) == {"y"}
    assert runs.constant([{"y": ONE}]) == frozenset()
    nan = np.array([np.nan, 1.0], np.float32)
    assert runs.constant([{"y": nan, "z": nan}, {"y": nan, "z": nan.astype("f8")}]) == {"y"}
    parts = [{"s[0]": ONE, "s[1]": ONE}, {"s[0]": ONE}]
    assert runs.constant(parts) == {"s[0]"}, "a sequence is longer on one of them"
