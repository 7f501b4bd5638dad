"""What the page tells in rows: what was left, numbers, checks."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx.commands.report import page, tables
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


def test_pieces_and_the_chain_of_them_have_rows_of_their_own(tmp_path: Path) -> None:
    made = report()
    verify = made.groups[0].verify
    assert verify is not None
    pieces = replace(numbers("near", 0.001), sessions="pieces")
    both = (*verify.numbers, pieces, replace(pieces, sessions="chain"))
    made = replace(made, groups=(replace(made.groups[0], verify=replace(verify, numbers=both)),))
    found = [(row.worst.output, row.worst.sessions) for row in tables.numbers(made.groups)]
    assert sorted(found) == [
        ("far", "files"),
        ("near", "chain"),
        ("near", "files"),
        ("near", "pieces"),
    ]
    text = page.render(made, tmp_path)
    assert all(f">{tables.SESSIONS[sessions]}" in text for _, sessions in found)
