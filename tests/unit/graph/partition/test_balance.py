"""Rows of blocks, cut by hand; `tests/property/test_pieces.py` compares with every other way."""

from __future__ import annotations

from epctx.graph.partition.balance import Blocks, balance, fewest

SHARED: Blocks = [{"a": 5}, {"b": 5}, {"a": 5}, {"a": 5, "c": 1}]


def even(count: int) -> Blocks:
    return [{place: 1} for place in range(count)]


def test_an_item_counts_once_in_a_run() -> None:
    assert [fewest(SHARED, limit) for limit in (5, 6, 10, 11)] == [None, 3, 2, 1]
    assert balance(SHARED, [0] * 4, 2) == [2]


def test_one_run_has_no_cut() -> None:
    assert balance(SHARED, [0] * 4, 1) == []


def test_a_run_within_five_percent_of_the_smallest_may_save_tolls() -> None:
    tolls = [9] * 40
    assert balance(even(40), tolls, 2) == [20]
    tolls[19] = 1
    assert balance(even(40), tolls, 2) == [19]
    assert balance(even(40), tolls, 2, ceiling=20) == [20]
    tolls[18] = 0
    assert balance(even(40), tolls, 2) == [19], "two less are more than five percent"


def test_blocks_without_items_are_never_left_out() -> None:
    assert balance([{"a": 1}, {}, {}], [0, 3, 4], 3) == [1, 2]
    assert balance([{}, {"a": 1}, {}], [0, 3, 4], 2) == [1]


def test_a_run_next_to_nothing_is_not_cut_off_to_save_tolls() -> None:
    layers: Blocks = [{"scale": 1}, {1: 90}, {2: 90}, {3: 90}, {4: 90}, {5: 90}]
    assert balance(layers, [0, 1, 5, 5, 5, 5], 4) == [2, 3, 4]
    assert balance(layers, [0, 1, 5, 5, 5, 5], 6) == [1, 2, 3, 4, 5], "there are not enough others"
