from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from epctx.graph.inputs import Array
from epctx.verification.numbers.again import Again
from epctx.verification.numbers.input_sets import Case

CASES = {
    "floats": Case(label="floats", feeds={"x": np.ones(3, np.float32), "n": np.array([7])}),
    "integers": Case(label="integers", feeds={"n": np.array([7])}),
}


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
