"""The sets of sizes that a model with open dimensions is run at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from epctx.graph.inputs import InputSpec
from epctx.verification.numbers.sizes import NotFound, Sizes, choose, words

INPUTS = [InputSpec(name="x", dtype=np.dtype(np.float32), shape=("batch", 3, None), kind="float32")]
Asked = Mapping[str, Sequence[int]]


def chosen(asked: Asked, holds: Callable[[Sizes], bool] = lambda s: True) -> tuple[Sizes, ...]:
    return choose(INPUTS, asked, lambda sizes: None if holds(sizes) else "does not fit")


def test_what_nothing_is_said_of_is_1_and_2() -> None:
    assert chosen({}) == ({"batch": 1, "x[2]": 1}, {"batch": 2, "x[2]": 2})
    assert words(chosen({})[0]) == "batch=1, x[2]=1"
    assert chosen({}, lambda s: s["batch"] == 2) == ({"batch": 2, "x[2]": 2},)
    assert chosen({"batch": (7,)}) == ({"batch": 7, "x[2]": 1}, {"batch": 7, "x[2]": 2})


def test_what_is_said_is_run_and_nothing_else() -> None:
    assert chosen({"batch": (7,), "x[2]": (5,), "other": (1,)}) == ({"batch": 7, "x[2]": 5},)
    several = chosen({"batch": (7, 9, 11), "x[2]": (4, 2)})
    assert [(s["batch"], s["x[2]"]) for s in several] == [(7, 4), (9, 2), (11, 2)]


@pytest.mark.parametrize("asked", [{}, {"batch": (7, 9), "x[2]": (4,)}])
def test_a_model_that_does_not_run_at_them_is_told(asked: Asked) -> None:
    with pytest.raises(NotFound, match="does not fit") as caught:
        chosen(asked, lambda s: s["batch"] == 7)
    assert caught.value.sizes == ({"batch": 9, "x[2]": 4} if asked else {"batch": 1, "x[2]": 1})
