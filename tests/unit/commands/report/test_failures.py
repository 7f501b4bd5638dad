from epctx.commands.report.failures import failures
from tests.kit.reports import failing


def test_what_failed_is_told_by_its_place_and_what_was_skipped_is_counted() -> None:
    found = failures(failing())
    assert [(row.number, row.group) for row in found.rows] == [(2, "ear@edge"), (3, "nose@edge")]
    assert [row.failure and row.failure.what for row in found.rows] == [
        "crashed",
        "output 'far' is 0.4 off",
    ]
    assert found.skipped == 2
