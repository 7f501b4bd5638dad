"""What the page tells in rows: what was left, numbers, checks."""

import pytest
from msgspec.structs import replace

from epctx.commands.report import tables
from tests.kit.reports import chain, numbers, report


def test_what_was_left_is_told_by_op_and_reason() -> None:
    (row,) = tables.left(chain(40))
    assert (row.op_type, row.ep, row.said.why, row.count) == ("TopK", "npu", "excluded", 10)
    assert row.names == tuple(f"node {n}" for n in (3, 7, 11, 15, 19))


def test_numbers_are_told_by_the_worst_inputs_and_the_worst_output_first() -> None:
    made = report()
    verify = made.groups[0].verify
    assert verify is not None
    again = replace(numbers("near", 0.004), input_set="seed 0, set 1")
    groups = (replace(made.groups[0], verify=replace(verify, numbers=(*verify.numbers, again))),)
    rows = tables.numbers(groups)
    assert [(r.worst.output, r.worst.input_set, r.sets) for r in rows] == [
        ("far", "seed 0, set 0", 1),
        ("near", "seed 0, set 0", 2),
    ]
    assert [r.used for r in rows] == pytest.approx([2, 0.9])


def test_what_failed_or_could_not_be_checked_comes_first() -> None:
    assert [row.finding.outcome for row in tables.checks(report().groups)] == [
        "not checkable",
        "pass",
    ]
