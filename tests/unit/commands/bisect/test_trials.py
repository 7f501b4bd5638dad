"""Builds in scratch: their numbers come back, and nothing of them stays."""

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx.commands.bisect.trials import Spent, Trials
from epctx.engine import plan
from epctx.errors import EpctxError
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


def test_the_first_build_is_made_whatever_the_budget(trials: Trials, group: ModelGroup) -> None:
    trials.deadline = time.monotonic()
    trials.build(group)
    with pytest.raises(Spent):
        trials.run(group)
