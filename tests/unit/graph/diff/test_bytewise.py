from __future__ import annotations

import pytest

from epctx.graph.diff import bytewise

SIZE = 3 << 20


def changed(*offsets: int) -> memoryview:
    data = bytearray(SIZE)
    for offset in offsets:
        data[offset] = 1
    return memoryview(data)


@pytest.mark.parametrize("offset", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, SIZE - 1])
def test_the_first_difference(offset: int) -> None:
    assert bytewise.first(changed(), changed(offset, SIZE - 1)) == offset


def test_no_difference() -> None:
    assert bytewise.first(changed(5), changed(5)) is None
    assert bytewise.first(memoryview(b""), memoryview(b"")) is None
    assert bytewise.words(changed(5), changed(5)) is None


def test_a_part_of_the_other_ends_where_they_differ() -> None:
    assert bytewise.first(memoryview(b"abc"), memoryview(b"abcd")) == 3
    assert bytewise.count(memoryview(b"abX"), memoryview(b"abcd")) == 2


def test_words() -> None:
    told = bytewise.words(changed(), changed(1234, 2_000_000))
    assert told == "byte 1,234 of 3,145,728 is the first of 2 that differ"
    told = bytewise.words(memoryview(b"abc"), memoryview(b"abcd"))
    assert told == "3 bytes are 4, the first difference is at byte 3"
