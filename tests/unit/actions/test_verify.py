"""A whole folder verified: checked, run and judged, each by jobs that any worker carries out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from epctx.actions.action import Action
from epctx.actions.run_models import RunFiles, RunSource
from epctx.actions.verify import runs, verified
from epctx.verification.findings import FolderReport
from epctx.verification.request import VerifyRequest
from tests.kit import folders
from tests.kit.controlled import Case
from tests.kit.inline import Inline


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


def checked(
    case: Case, budget: float | None = None, **asked: Any
) -> tuple[list[list[type[Action[Any]]]], FolderReport]:
    """The jobs, and the report."""
    jobs: list[list[type[Action[Any]]]] = []

    def carry_out(job: Sequence[Action[Any]]) -> list[Any]:
        jobs.append([type(action) for action in job])
        worker = Inline(case.tmp / f"w{len(list(case.tmp.iterdir()))}", case.tmp / "log")
        return worker.run(job, started=lambda stage: None, budget=budget)

    folders.write_sums(case.folder)
    request = VerifyRequest(folder=case.folder, label="g", kept=case.kept, **asked)
    return jobs, verified(request, carry_out)


@pytest.mark.parametrize(
    ("numbers", "asked", "expected"),
    [
        ("off", {}, [RunFiles]),
        ("generating", {}, [RunSource, RunSource, RunFiles]),
        ("full", {"golden": True}, [RunSource, RunSource, RunFiles, RunFiles]),
        (None, {}, [RunFiles]),
        (None, {"golden": True}, [RunFiles]),
        (None, {"device": Path("results")}, []),
    ],
)
def test_what_is_run_is_what_can_be_judged(
    case: Case, numbers: str | None, asked: dict[str, Any], expected: list[type[Action[Any]]]
) -> None:
    case.verify = {"numbers": numbers}
    group = None if numbers is None else case.group()
    request = VerifyRequest(folder=case.folder, label="g", kept=case.kept, group=group, **asked)
    assert [type(action) for action in runs(request)] == expected
