"""What the page tells in figures and rows: overview, timeline, tables."""

from dataclasses import replace

import pytest

from epctx.commands.report import overview, tables, timeline
from epctx.engine.report import StageTime
from epctx.stages.report import CompositionReport
from tests.unit.commands.report.reports import chain, numbers, report


def test_the_figures_at_a_glance() -> None:
    told = {f.name: (f.value, f.note, f.tone) for f in overview.figures(report(), 2_000_000)}
    assert told == {
        "Groups": ("3", "1 built, 1 failed, 1 up to date", "bad"),
        "On EPs": ("75.0 %", "18 of 24 nodes in 2 models", "warn"),
        "Checks passed": ("1", "1 not checkable", "warn"),
        "Largest error": ("2.0e-02", "1 beyond the tolerance", "bad"),
        "Size": ("3.0 MB", "2 files; sharing saved 2.0 MB", ""),
        "Time": ("10.0 s", "wall clock", ""),
    }


def test_a_composition_counts_no_node_twice() -> None:
    made = report()
    wiring = CompositionReport(parts={}, links={}, inputs={}, outputs={})
    composed = replace(made.groups[0], group="whole", composition=wiring)
    both = replace(made, groups=(*made.groups, composed))
    (figure,) = (f for f in overview.figures(both, None) if f.name == "On EPs")
    assert figure.note == "18 of 24 nodes in 2 models"


def test_a_group_has_a_cell_for_each_target_that_builds_it() -> None:
    targets, rows = overview.matrix(report(), ("npu",))
    assert targets == ("edge", "cloud")
    assert [(r.group, [c and c.group.state for c in r.cells]) for r in rows] == [
        ("eye", ["built", "up to date"]),
        ("ear", ["failed", None]),
    ]
    cell = rows[0].cells[0]
    assert cell is not None
    assert [(s.alias, s.nodes, s.start, s.percent) for s in cell.shares] == [
        ("npu", 9, 0, 75),
        ("default EP", 3, 75, 25),
    ]


@pytest.mark.parametrize(
    ("part", "whole", "words"),
    [(5, 5, "100 %"), (0, 5, "0.0 %"), (1, 10**6, "0.1 %"), (10**6 - 1, 10**6, "99.9 %")],
)
def test_not_all_is_never_said_to_be_all(part: int, whole: int, words: str) -> None:
    assert overview.percent(part, whole) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.004, "0.00 s"), (61.24, "61.2 s"), (600, "10 min 0 s"), (7260, "2 h 1 min")],
)
def test_durations(seconds: float, words: str) -> None:
    assert overview.duration(seconds) == words


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


def test_what_was_left_is_told_by_op_and_reason() -> None:
    (row,) = tables.left(chain(40))
    assert (row.op_type, row.reason, row.count) == ("TopK", "npu: excluded", 10)
    assert row.names == tuple(f"node {n}" for n in (3, 7, 11, 15, 19))


def test_numbers_are_told_by_the_worst_inputs_and_the_worst_output_first() -> None:
    made = report()
    verify = made.groups[0].verify
    assert verify is not None
    again = replace(numbers("near", 0.004), input_set="seed 0, set 1")
    groups = (replace(made.groups[0], verify=replace(verify, numbers=(*verify.numbers, again))),)
    rows = tables.numbers(replace(made, groups=groups))
    assert [(r.worst.output, r.worst.input_set, r.sets) for r in rows] == [
        ("far", "seed 0, set 0", 1),
        ("near", "seed 0, set 0", 2),
    ]
    assert [r.used for r in rows] == pytest.approx([2, 0.9])


def test_what_failed_or_could_not_be_checked_comes_first() -> None:
    assert [row.finding.outcome for row in tables.checks(report())] == ["not checkable", "pass"]
