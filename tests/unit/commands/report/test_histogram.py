from msgspec.structs import replace

from epctx.commands.report.histogram import HEIGHT, NAMES, histogram
from tests.kit.reports import numbers

FOUND = numbers("y", 0.4).comparison


def test_each_decade_that_has_elements_is_a_column_and_is_said() -> None:
    counts = (1_000_000, 0, 0, 0, 0, 0, 3, 20, 0, 0, 1)
    drawn = histogram(replace(FOUND, histogram=counts), 1e-3)
    assert drawn is not None
    assert drawn.words == (
        "Of 1,000,024 elements: 1,000,000 equal, 3 below 0.001, 20 below 0.01, 1 beyond"
    )
    assert [column.beyond for column in drawn.columns] == [False, False, True, True]
    heights = [column.height for column in drawn.columns]
    assert heights[0] == HEIGHT and 2 < heights[3] < heights[1] < heights[2] < HEIGHT
    assert [column.x for column in drawn.columns] == [0, 48, 56, 80]


def test_without_a_tolerance_nothing_is_beyond_it() -> None:
    drawn = histogram(replace(FOUND, histogram=(0,) * 10 + (5,)), None)
    assert drawn is not None and not drawn.columns[0].beyond


def test_what_is_no_number_has_no_histogram() -> None:
    assert histogram(FOUND, 1.0) is None
    assert histogram(replace(FOUND, histogram=(0,) * len(NAMES)), 1.0) is None
