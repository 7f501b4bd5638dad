from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from epctx.graph.inputs import Array
from epctx.verification.numbers.again import Again, perturbed
from epctx.verification.numbers.input_sets import Case

CASES = {
    "floats": Case(label="floats", feeds={"x": np.ones(3, np.float32), "n": np.array([7])}),
    "integers": Case(label="integers", feeds={"n": np.array([7])}),
}


def test_each_float_is_off_by_so_much_of_itself_and_nothing_else_is() -> None:
    feeds: dict[str, np.ndarray] = {
        "x": np.linspace(-3, 3, 100, dtype=np.float32),
        "h": np.ones(8, np.float16),
        "n": np.array([7]),
        "s": np.array(["a"], object),
    }
    found = perturbed(feeds, 2.0**-8)
    assert found["h"].dtype == np.float16 and found["n"] is feeds["n"] and found["s"] is feeds["s"]
    np.testing.assert_allclose(np.abs(found["x"] / feeds["x"] - 1), 2.0**-8, rtol=1e-3)
    assert {bool(up) for up in found["x"] > feeds["x"]} == {True, False}
    again = perturbed(feeds, 2.0**-8)
    np.testing.assert_array_equal(found["x"], again["x"])


def test_kernels_run_once_on_an_input_set() -> None:
    runs: list[bool] = []

    def compute(feeds: Mapping[str, Array], optimized: bool) -> Mapping[str, Array]:
        runs.append(optimized)
        return {"y": feeds["n"]}

    again = Again(compute, CASES)
    assert again.unoptimized("floats") is again.unoptimized("floats")
    assert again.rounded("floats", 0.1)["y"] == 7 and runs == [False, True]


@pytest.mark.parametrize("label", ["floats", "integers"])
def test_what_does_not_run_says_nothing(label: str) -> None:
    def compute(feeds: Mapping[str, Array], optimized: bool) -> Mapping[str, Array]:
        raise RuntimeError("no kernel")

    again = Again(compute, CASES)
    assert again.unoptimized(label) == again.rounded(label, 0.1) == {}


def test_integers_alone_cannot_be_rounded() -> None:
    again = Again(lambda feeds, optimized: {"y": feeds["n"]}, CASES)
    assert again.rounded("integers", 0.1) == {} != again.unoptimized("integers")
