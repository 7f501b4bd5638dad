"""Violations as people are shown them."""

from epctx.cli import problems
from epctx.errors import Violation


def violations(count: int) -> list[Violation]:
    return [
        Violation(file="m.yaml", line=n, column=1, path="a", what=f"is {n}", remedy="mend it")
        for n in range(1, count + 1)
    ]


def plain(count: int, *, every: bool = False) -> list[str]:
    found = problems.texts(problems.of_violations(violations(count), "warning"), every=every)
    return [text.plain for text in found]


def test_of_many_the_first_and_a_count() -> None:
    told = plain(2000)
    assert len(told) == 21
    assert told[-1] == "and 1,980 more in m.yaml: -v shows all"
    assert len(plain(2000, every=True)) == 2000
