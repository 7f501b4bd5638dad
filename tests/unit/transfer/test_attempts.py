"""What may be better the next time is asked for again, a bounded number of times."""

import time
from collections.abc import Iterator

import pytest

from epctx.transfer.attempts import Passing, StoreError, exactly, repeatedly, resumed


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited, in order, without waiting."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


def test_attempts_are_bounded_and_come_later_and_later(waits: list[float]) -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        raise Passing("not now")

    with pytest.raises(StoreError, match="not now"):
        repeatedly(call)
    assert len(calls) == 4
    assert len(waits) == 3 and 0.1 <= waits[0] <= 0.2 <= waits[1] <= 0.4 <= waits[2] <= 0.8


def test_what_will_be_the_same_is_not_asked_for_again(waits: list[float]) -> None:
    def call() -> None:
        raise StoreError("no", lasting=True)

    with pytest.raises(StoreError, match="no"):
        repeatedly(call)
    assert waits == []


@pytest.mark.parametrize(("after", "attempts_made"), [(7, 2), (31, 1)])
def test_a_wait_is_as_long_as_asked_up_to_a_bound(
    waits: list[float], after: float, attempts_made: int
) -> None:
    calls: list[int] = []

    def call() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise Passing("not now", after=after)
        return "well"

    if attempts_made == 1:
        with pytest.raises(Passing):
            repeatedly(call)
    else:
        assert repeatedly(call) == "well"
        assert waits == [after]
    assert len(calls) == attempts_made


def test_a_blob_goes_on_where_it_broke(waits: list[float]) -> None:
    content, begins = bytes(range(100)), list[int]()

    def pieces(done: int) -> Iterator[bytes]:
        begins.append(done)
        yield content[done : done + 40]
        if done < 60:
            raise Passing("broke")

    assert b"".join(resumed(pieces, 100)) == content
    assert begins == [0, 40, 80]


def test_progress_makes_attempts_anew_and_crumbs_do_not(waits: list[float]) -> None:
    def breaking(size: int) -> Iterator[bytes]:
        yield bytes(size)
        raise Passing("broke")

    assert len(b"".join(resumed(lambda done: breaking(1 << 20), 20 << 20))) == 20 << 20
    with pytest.raises(Passing):
        list(resumed(lambda done: breaking(1), 20 << 20))


@pytest.mark.parametrize(("size", "error"), [(4, StoreError), (6, Passing)])
def test_more_and_less_are_told(size: int, error: type[StoreError]) -> None:
    with pytest.raises(error) as raised:
        list(exactly([b"abc", b"de"], size))
    assert type(raised.value) is error
