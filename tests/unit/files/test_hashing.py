"""Work on many files at once: all results by name, in order, and the first error."""

from __future__ import annotations

import threading

import pytest

from epctx.files import hashing


def test_results_come_by_name_in_the_order_of_the_names() -> None:
    names = ["c", "a", "b"]
    assert list(hashing.of_each(str.upper, iter(names)).items()) == [
        ("c", "C"),
        ("a", "A"),
        ("b", "B"),
    ]
    assert hashing.of_each(str.upper, ()) == {}


def test_several_are_worked_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    both = threading.Barrier(2)
    assert hashing.of_each(lambda _: both.wait(timeout=10) is not None, "ab") == {
        "a": True,
        "b": True,
    }


def test_the_error_of_the_first_name_is_raised() -> None:
    def work(name: str) -> None:
        if name != "a":
            raise OSError(name)

    with pytest.raises(OSError, match="b"):
        hashing.of_each(work, ["a", "b", "c"])
