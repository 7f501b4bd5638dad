"""What ran when, as the page draws it."""

import pytest
from msgspec.structs import replace

from epctx.commands.report import timeline
from epctx.engine.report import StageTime
from tests.kit.reports import report


def test_the_timeline_in_per_cent_with_round_marks() -> None:
    found = timeline.timeline(report())
    assert found is not None
    (line,) = found.lines
    assert (line.group, line.subject) == ("eye@edge", "chain")
    assert [(b.time.stage, b.start, b.width) for b in line.bars] == [
        ("load", 5, 5),
        ("compile", 10, 85),
    ]
    assert found.totals == {"load": 0.5, "compile": 8.5}
    assert [tick.seconds for tick in found.ticks] == [0, 2, 4, 6, 8, 10]
    assert [tick.place for tick in found.ticks] == [0, 20, 40, 60, 80, 100]


@pytest.mark.parametrize("seconds", [0.0004, 0.3, 7.9, 95.0, 36_000.0])
def test_a_timeline_of_any_length_has_few_marks(seconds: float) -> None:
    made = report()
    stages = (StageTime(stage="load", subject="m", start=0, end=seconds),)
    groups = (replace(made.groups[0], stages=stages),)
    found = timeline.timeline(replace(made, seconds=seconds, groups=groups))
    assert found is not None and 1 <= len(found.ticks) <= 9


def test_nothing_ran_and_there_is_no_timeline() -> None:
    made = report()
    assert timeline.timeline(replace(made, groups=made.groups[1:])) is None


def test_what_ran_on_other_machines_is_in_lines_of_each_of_them() -> None:
    made = report()
    places = [("load", "w1"), ("compile", "w0"), ("dump", "w1")]
    stages = tuple(
        StageTime(stage=stage, subject="m", start=0, end=1, machine=machine)
        for stage, machine in places
    )
    found = timeline.timeline(replace(made, groups=(replace(made.groups[0], stages=stages),)))
    assert found is not None
    assert [(line.machine, len(line.bars)) for line in found.lines] == [("w0", 1), ("w1", 2)]
