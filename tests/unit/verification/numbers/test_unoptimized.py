"""Sources to which ONNX Runtime gives two answers, and second runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from epctx.graph.inputs import Array
from epctx.manifest import Tolerance
from epctx.verification.numbers.input_sets import Case
from epctx.verification.numbers.tolerances import of_type
from epctx.verification.numbers.unoptimized import Rerun, difference, folds
from tests.kit import onnx_text

FOLDS = {
    "a shape": "(float[2] x) => (int64[1] y) { y = Shape(x) }",
    "a size": "(float[2] x) => (int64 y) { y = Size(x) }",
    "constants only": "(float[2] x) => (float[2] y) <int64[1] a = {0}, float[2] c = {1,2}>"
    " { z = ReduceSum(c, a) y = Mul(x, z) }",
    "constants of constants": "(float[2] x) => (float[2] y) <float[2] c = {1,2}>"
    " { i = Identity(c) z = Neg(i) y = Mul(x, z) }",
    "in a branch": "(float[2] x, bool c) => (int64[1] y) { y = If(c) <"
    "then_branch = t () => (int64[1] p) { p = Shape(x) },"
    "else_branch = e () => (int64[1] q) { q = Constant <value_ints = [1]> () }> }",
    "of a constant outside": "(bool c) => (float[2] y) <float[2] k = {1,2}> { y = If(c) <"
    "then_branch = t () => (float[2] p) { p = Neg(k) },"
    "else_branch = e () => (float[2] q) { q = Identity(k) }> }",
}
NOTHING = {
    "weights": "(float[2] x) => (float[2] y) <float[2] c = {1,2}> { y = Mul(x, c) }",
    "what all fold alike": "(float[2,2] x) => (float[2,2] y) <float[2,2] c = {1,2,3,4}>"
    " { t = Transpose(c) h = Cast <to = 10> (t) z = Cast <to = 1> (h) y = Mul(x, z) }",
    "a default that can be fed": "(float[2] x, float[2] c) => (float[2] y) <float[2] c = {1,2}>"
    " { z = Neg(c) y = Mul(x, z) }",
}


@pytest.mark.parametrize("body", FOLDS.values(), ids=FOLDS.keys())
def test_what_is_run_twice(body: str) -> None:
    assert folds(onnx_text.proto(f"g {body}"))


@pytest.mark.parametrize("body", NOTHING.values(), ids=NOTHING.keys())
def test_what_is_run_once(body: str) -> None:
    assert not folds(onnx_text.proto(f"g {body}"))


def limits(name: str, dtype: str) -> Tolerance:
    return of_type("float32", dtype)


def test_the_order_of_sums_is_no_difference() -> None:
    one = {"y": np.array([1, 2, 3], np.float32), "n": np.array([1])}
    other = one | {"y": one["y"] * np.float32(1 + 1e-6)}
    assert difference(one, other, limits) is None


def test_a_sequence_that_is_shorter_is_a_difference() -> None:
    one, part = {"s[0]": np.ones(1), "s[1]": np.ones(1)}, {"s[0]": np.ones(1)}
    assert difference(part, one, limits) == "one of them has no output 's[1]'"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("y", np.array([15, 30, 45], np.float32)),
        ("y", np.zeros((1, 3), np.float32)),
        ("n", np.array([2])),
    ],
)
def test_another_answer_is_one(name: str, value: np.ndarray) -> None:
    one = {"y": np.array([1, 2, 3], np.float32), "n": np.array([1])}
    found = difference(one, one | {name: value}, limits)
    assert found is not None and found.startswith(f"output '{name}': ")


CASES = {
    "floats": Case(label="floats", feeds={"x": np.ones(3, np.float32), "n": np.array([7])}),
    "integers": Case(label="integers", feeds={"n": np.array([7])}),
}


def test_kernels_run_once_on_an_input_set() -> None:
    runs: list[bool] = []

    def compute(feeds: Mapping[str, Array], optimized: bool) -> Mapping[str, Array]:
        runs.append(optimized)
        return {"y": feeds["n"]}

    again = Rerun(compute, CASES)
    assert again.unoptimized("floats") is again.unoptimized("floats")
    assert again.rounded("floats", 0.1)["y"] == 7 and runs == [False, True]


@pytest.mark.parametrize("label", ["floats", "integers"])
def test_what_does_not_run_says_nothing(label: str) -> None:
    def compute(feeds: Mapping[str, Array], optimized: bool) -> Mapping[str, Array]:
        raise RuntimeError("no kernel")

    again = Rerun(compute, CASES)
    assert again.unoptimized(label) == again.rounded(label, 0.1) == {}
