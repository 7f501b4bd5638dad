"""Violations as people are shown them."""

from epctx.cli import problems
from epctx.errors import ModelError, Violation


def violations(count: int) -> list[Violation]:
    return [
        Violation(file="m.yaml", line=n, column=1, path="a", what=f"is {n}", remedy="mend it")
        for n in range(1, count + 1)
    ]


def plain(count: int, *, every: bool = False) -> list[str]:
    found = problems.texts(problems.of_violations(violations(count), "warning"), every=every)
    return [text.plain for text in found]


def test_a_place_that_the_position_says_is_not_said_twice() -> None:
    error = ModelError("is wrong", remedy="mend it", file="m.onnx", line=3, column=1)
    (problem,) = problems.of_error(error)
    assert (problem.place, problem.position) == ("", "m.onnx:3:1")
    assert problems.text(problem).plain == "error[E0400]: m.onnx:3:1: is wrong\n  -> mend it"
    (beside,) = problems.of_error(ModelError("is wrong", remedy="", file="m.onnx", node="n"))
    assert beside.place == "m.onnx, node 'n'"


def test_of_many_the_first_and_a_count() -> None:
    told = plain(2000)
    assert len(told) == 21
    assert told[-1] == "and 1,980 more in m.yaml: -v shows all"
    assert len(plain(2000, every=True)) == 2000
