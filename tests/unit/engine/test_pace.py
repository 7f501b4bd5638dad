"""What is told of runs while they go on, on a clock that a test moves."""

from __future__ import annotations

from pathlib import Path

from epctx.actions.action import StageStarted
from epctx.cache import Cache, Location
from epctx.engine.progress import Eta, RunTime, RunTimes
from epctx.files.digest import of_bytes

KEY = of_bytes(b"a compile")


def pace(folder: Path, *models: str) -> RunTimes:
    records = Cache(Location(folder=folder), lambda text: None).records
    return RunTimes(records=records, compiled=dict.fromkeys(models, KEY))


def run(model: str, number: int, of: int) -> StageStarted:
    return StageStarted(stage="verify", model=model, number=number, of=of)


def test_the_first_set_tells_how_long_the_others_take(tmp_path: Path) -> None:
    told = Eta(pace(tmp_path, "m"))
    assert told.announce(run("m", 1, 3), 100.0) == "numbers: set 1 of 3"
    assert told.announce(run("m", 2, 3), 160.0) == "numbers: set 2 of 3, about 2 min left"
    assert told.announce(run("m", 3, 3), 220.0) == "numbers: set 3 of 3, about 60 s left"
    told.ended(300.0)
    told.ended(390.0)
    told.note(7)
    assert pace(tmp_path, "m").find("m") == RunTime(seconds=80.0, peak_memory=7)


def test_of_several_models_it_says_which_and_counts_those_to_come(tmp_path: Path) -> None:
    known = pace(tmp_path, "m", "n", "o")
    known.note("m", RunTime(seconds=10.0, peak_memory=7))
    known.note("o", RunTime(seconds=40.0, peak_memory=7))
    told = Eta(known)
    assert told.announce(run("m", 1, 1), 0.0) == (
        "numbers: model 1 of 3, m, set 1 of 1, about 60 s left"
    )
    assert told.announce(run("n", 1, 1), 9.0) == "numbers: model 2 of 3, n, set 1 of 1"
