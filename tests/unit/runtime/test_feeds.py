"""Generated values: by seed, set and name alone, within their ranges."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from epctx.errors import ManifestError
from epctx.graph.inputs import Hint, InputSpec
from epctx.runtime import feeds
from epctx.runtime.feeds import assumed, generate


def spec(
    name: str = "x",
    dtype: npt.DTypeLike = np.float32,
    shape: tuple[int | str | None, ...] = (4, 5),
    **more: Any,
) -> InputSpec:
    return InputSpec(
        name=name, dtype=np.dtype(dtype), shape=shape, kind=str(np.dtype(dtype)), **more
    )


def one(
    wanted: InputSpec, *, seed: int = 0, index: int = 0, **ranges: tuple[float, float]
) -> np.ndarray:
    return generate([wanted], seed=seed, index=index, ranges=ranges)[wanted.name]


def test_a_value_depends_on_seed_set_and_name_alone() -> None:
    a, b = spec("a"), spec("b")
    together = generate([a, b], seed=3, index=1)
    assert np.array_equal(together["a"], generate([b, a], seed=3, index=1)["a"])
    assert np.array_equal(together["a"], one(a, seed=3, index=1))
    for other in (one(b, seed=3, index=1), one(a, seed=4, index=1), one(a, seed=3, index=2)):
        assert not np.array_equal(together["a"], other)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_floats_are_standard_normal(dtype: npt.DTypeLike) -> None:
    values = one(spec(dtype=dtype, shape=(100, 100)))
    assert values.dtype == dtype and values.shape == (100, 100)
    wide = values.astype(np.float64)
    assert abs(wide.mean()) < 0.05 and abs(wide.std() - 1) < 0.05


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_narrow_integers_use_their_whole_range(dtype: npt.DTypeLike) -> None:
    values, bounds = one(spec(dtype=dtype, shape=(300, 300))), np.iinfo(dtype)
    span = int(bounds.max) - int(bounds.min)
    assert int(values.min()) < bounds.min + span * 0.01
    assert int(values.max()) > bounds.max - span * 0.01


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64, np.bool_])
def test_wide_integers_and_booleans_are_zero_or_one(dtype: npt.DTypeLike) -> None:
    values = one(spec(dtype=dtype, shape=(100,)))
    assert values.dtype == dtype and set(values.tolist()) == {0, 1}


def test_ranges_are_inclusive() -> None:
    drawn = one(spec(dtype=np.int64, shape=(1000,)), x=(-2, 2))
    assert set(drawn.tolist()) == {-2, -1, 0, 1, 2}
    assert set(one(spec(dtype=np.int32, shape=(9,)), x=(7, 7)).tolist()) == {7}
    assert one(spec(dtype=np.bool_, shape=(50,)), x=(1, 1)).all()
    floats = one(spec(shape=(1000,)), x=(10, 12))
    assert floats.dtype == np.float32 and 10 <= floats.min() < 10.1 and 11.9 < floats.max() <= 12
    extremes = one(spec(dtype=np.uint64, shape=(3,)), x=(0, float(2**53)))
    assert extremes.dtype == np.uint64


@pytest.mark.parametrize(
    ("dtype", "given", "why"),
    [
        (np.int32, (5, 4), "its low end is above its high end"),
        (np.int32, (0.5, 4), "int32 holds integers only"),
        (np.uint8, (-1, 4), r"uint8 holds [0, 255]"),
        (np.bool_, (0, 2), r"bool holds [0, 1]"),
        (np.float16, (0, 1e6), r"float16 holds [-65504, 65504]"),
        (np.float32, (1, 0), "its low end is above its high end"),
        (np.float32, (float("nan"), 1), "its low end is above its high end"),
        (np.float64, (-1.7e308, 1.7e308), "it is wider than float64 can tell"),
        (np.int64, (0, float("inf")), "int64 holds"),
    ],
)
def test_a_range_that_the_input_cannot_hold_is_refused(
    dtype: npt.DTypeLike, given: tuple[float, float], why: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        one(spec(dtype=dtype), x=given)
    assert why in str(caught.value)
    assert "verify.inputs.ranges" in str(caught.value)


def test_a_hint_of_the_graph_is_used_unless_a_range_is_given() -> None:
    ids = spec(dtype=np.int64, shape=(2000,), hint=Hint(0, 30, ""))
    assert set(one(ids).tolist()) == set(range(31))
    assert set(one(ids, x=(3, 4)).tolist()) == {3, 4}


def test_a_hint_is_as_narrow_as_its_type() -> None:
    """A logarithm of a cast integer; a scale of which float16 does not hold every multiple."""
    assert set(one(spec(dtype=np.int64, shape=(99,), hint=Hint(2**-10, 4, ""))).tolist()) == {
        1,
        2,
        3,
        4,
    }
    wide = one(spec(dtype=np.float16, shape=(999,), hint=Hint(-1e5, 1e5, "")))
    assert np.isfinite(wide).all() and wide.max() > 6e4


def test_values_that_give_a_size_are_used_as_they_are() -> None:
    sizes = Hint(1, 9, "the size", (9, 1, 4))
    assert one(spec(dtype=np.int32, shape=(3,), hint=sizes)).tolist() == [9, 1, 4]
    assert one(spec(dtype=np.int64, shape=(3,), hint=sizes), x=(2, 2)).tolist() == [2, 2, 2]
    assert one(spec(dtype=np.bool_, shape=(), hint=Hint(1, 1, "", (1,)))).tolist() is True
    assert set(one(spec(dtype=np.int64, shape=(2,), hint=sizes)).tolist()) <= {*range(1, 10)}
    assert "'x' 9, 1, 4 (the size)" in assumed([spec(dtype=np.int64, hint=sizes)], {})


def test_scalars_and_empty_inputs() -> None:
    assert one(spec(shape=())).shape == ()
    assert one(spec(shape=(0, 3))).shape == (0, 3)


def test_digest_is_of_names_types_shapes_and_values() -> None:
    base: dict[str, np.ndarray] = {"a": np.zeros(4, np.float32), "b": np.ones(1, np.int64)}
    same = {"b": base["b"].copy(), "a": base["a"].copy()}
    assert feeds.digest(base) == feeds.digest(same)
    changes: tuple[dict[str, np.ndarray], ...] = (
        {**base, "a": np.zeros(4, np.int32)},
        {**base, "a": np.zeros((2, 2), np.float32)},
        {**base, "a": np.array([0, 0, 0, 1], np.float32)},
        {"c": base["a"], "b": base["b"]},
    )
    for changed in changes:
        assert feeds.digest(changed) != feeds.digest(base)
    feeds.digest({"x": np.array(1, ml_dtypes.bfloat16), "e": np.zeros((0, 2))})


def test_strings_have_a_digest_by_what_they_say() -> None:
    one, same, other, longer = (
        feeds.digest({"s": np.array(words, object)})
        for words in (["a", "b"], ["a", "b"], ["a", "c"], ["ab", ""])
    )
    assert one == same and len({one, other, longer}) == 3
