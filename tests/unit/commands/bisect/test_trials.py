"""Builds in scratch: their numbers come back, and nothing of them stays."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from epctx.commands.bisect.search import Spent, Trials
from epctx.engine import plan
from epctx.errors import CompileError, EpctxError
from epctx.manifest import ModelGroup, PartitionSettings


@pytest.fixture
def trials(damaged: Path, tmp_path: Path) -> Trials:
    folder = tmp_path / "trials"
    folder.mkdir()
    return Trials(known=plan.read(damaged).manifest, target="default", folder=folder)


@pytest.fixture
def group(damaged: Path) -> ModelGroup:
    return plan.read(damaged).groups[0].group


def test_the_numbers_of_a_build_that_fails_by_them_come_back(
    trials: Trials, group: ModelGroup
) -> None:
    numbers = trials.build(group)
    assert {each.output for each in numbers} == {"y"}
    assert not any(each.passed for each in numbers)
    repaired = replace(group, partition=PartitionSettings(exclude_nodes=("product6",)))
    assert all(each.passed for each in trials.build(repaired))
    assert trials.count == 2 and not list(trials.folder.iterdir())


def test_a_build_that_fails_otherwise_is_no_result(trials: Trials, group: ModelGroup) -> None:
    misspelt = replace(group, partition=PartitionSettings(exclude_nodes=("produkt",)))
    with pytest.raises(EpctxError, match="nothing in the optimized models matches"):
        trials.build(misspelt)


@pytest.mark.parametrize(
    ("remedy", "told"),
    [
        ("use another SDK; its log: {}/a.log", "use another SDK; `epctx build` keeps its log"),
        ("see the whole log: {}/a.log", "`epctx build` keeps its log"),
        ("use another SDK", "use another SDK"),
    ],
)
def test_a_failure_names_no_log_that_is_gone(
    trials: Trials, group: ModelGroup, monkeypatch: pytest.MonkeyPatch, remedy: str, told: str
) -> None:
    error = CompileError("it failed", remedy=remedy.format(trials.folder))
    nothing = SimpleNamespace(verify=None)
    monkeypatch.setattr(Trials, "run", lambda trials, group: (nothing, error))
    with pytest.raises(CompileError) as raised:
        trials.build(group)
    assert raised.value.remedy == told


def test_the_first_build_is_made_whatever_the_budget(trials: Trials, group: ModelGroup) -> None:
    trials.deadline = time.monotonic()
    trials.build(group)
    with pytest.raises(Spent):
        trials.run(group)
