from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from epctx.manifest import Tolerance
from epctx.verification.numbers import scale as scale_module
from epctx.verification.numbers.compare import compare, excess

STRICT = Tolerance(cosine_min=0.999999, max_rel=1e-5)
FLOATS = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]


def floats(*values: float, dtype: npt.DTypeLike = np.float32) -> np.ndarray:
    found: np.ndarray = np.array(values, dtype=np.float64).astype(dtype)
    return found


@pytest.mark.parametrize("dtype", FLOATS)
def test_equal_outputs_of_every_float_type_pass_without_any_tolerance(dtype: npt.DTypeLike) -> None:
    values = floats(1, -2, 0.5, dtype=dtype)
    found = compare(values, values.copy())
    assert found.equal and found.max_abs == 0 and found.max_rel == 0 and found.cosine == 1
    assert found.worst is None
    assert excess(found, Tolerance()) is None


def test_errors_are_measured_and_located() -> None:
    expected = floats(1, -4, 2, 0).reshape(2, 2)
    actual = expected.copy()
    actual[1, 0] = 2.5
    found = compare(expected, actual)
    assert found.max_abs == 0.5
    assert found.max_rel == 0.125
    assert found.cosine == pytest.approx(22 / np.sqrt(21 * 23.25))
    assert found.worst is not None
    assert (found.worst.index, found.worst.expected, found.worst.actual) == ((1, 0), "2.0", "2.5")
    assert excess(found, Tolerance(max_rel=0.125)) is None
    assert excess(found, Tolerance(max_rel=0.1249)) == "relative error 0.125 > 0.1249"
    assert excess(found, Tolerance(max_abs=0.4)) == "absolute error 0.5 > 0.4"
    assert excess(found, Tolerance(cosine_min=0.999)) == "cosine 0.995638209 < 0.999"


def test_every_limit_that_is_exceeded_is_named() -> None:
    found = compare(floats(1, 0), floats(0, 1))
    reason = excess(found, Tolerance(cosine_min=0.5, max_abs=0.5, max_rel=0.5))
    assert reason == "absolute error 1 > 0.5; relative error 1 > 0.5; cosine 0 < 0.5"


def test_a_tolerance_without_limits_allows_only_equality() -> None:
    found = compare(floats(1), floats(1.0000001))
    assert excess(found, Tolerance()) == "it is not equal, and no limit allows a difference"


def test_nan_and_infinity_are_equal_to_themselves() -> None:
    values = floats(np.nan, np.inf, -np.inf, 3)
    found = compare(values, values.copy())
    assert found.equal and found.cosine == 1 and excess(found, STRICT) is None


@pytest.mark.parametrize(
    ("expected", "actual", "problem"),
    [
        (1.0, np.nan, "it is NaN where finite is right"),
        (np.nan, 1.0, "it is finite where NaN is right"),
        (np.inf, -np.inf, "it is infinite with another sign than it should"),
        (1.0, np.inf, "it is infinite where finite is right"),
        (np.inf, 1.0, "it is finite where infinite is right"),
        (np.nan, np.inf, "it is infinite where NaN is right"),
    ],
)
def test_no_tolerance_excuses_nan_or_infinity_on_one_side(
    expected: float, actual: float, problem: str
) -> None:
    found = compare(floats(0, expected), floats(0, actual))
    assert found.problem == problem
    assert found.worst is not None and found.worst.index == (1,)
    assert excess(found, Tolerance(max_abs=1e9, max_rel=1e9, cosine_min=-1)) == problem


def test_other_elements_are_still_compared_beside_equal_nans() -> None:
    found = compare(floats(np.nan, 1, 2), floats(np.nan, 1, 1))
    assert found.max_abs == 1 and found.max_rel == 0.5
    assert found.worst is not None and found.worst.index == (2,)


def test_zero_vectors() -> None:
    zeros = floats(0, 0)
    assert excess(compare(zeros, floats(-0.0, 0)), STRICT) is None
    found = compare(zeros, floats(0, 1e-6))
    assert found.cosine is None and found.max_rel is None and found.max_abs == pytest.approx(1e-6)
    assert (
        excess(found, STRICT) == "the expected output is zero, or all but zero, and this one is not"
    )
    assert excess(found, Tolerance(max_abs=1e-5)) is None
    assert excess(found, Tolerance(cosine_min=0.9)) is not None


@pytest.mark.parametrize(
    "limits",
    [
        STRICT,
        Tolerance(cosine_min=0.9, max_rel=1.0),
        Tolerance(cosine_min=0.9, max_rel=1e9, sqnr_min=-500.0),
        Tolerance(max_abs=1e9),
        Tolerance(saturates_at=65504.0, max_rel=2.0, cosine_min=-1.0),
    ],
)
@pytest.mark.parametrize("dtype", [*FLOATS, np.complex64])
def test_no_tolerance_excuses_an_output_of_zeros(dtype: npt.DTypeLike, limits: Tolerance) -> None:
    right, dead = np.array([[3, 0], [1, 2]], dtype), np.array([[0, 0], [-0.0, 0]], dtype)
    assert (
        excess(compare(right, dead, limits), limits) == "it is zero throughout, and should not be"
    )
    assert excess(compare(dead, dead * 0, limits), limits) is None


def test_a_mask_does_not_excuse_zeros_beside_it() -> None:
    right = np.where(np.arange(64) % 8, np.arange(64), -1e9).astype(np.float32)
    limits = Tolerance(max_rel=1.0, cosine_min=0.9)
    found = compare(right, np.where(right < 0, right, 0).astype(np.float32), limits)
    assert excess(found, limits) == "it is zero throughout, and should not be"


def test_zero_is_a_value_as_any_other_for_integers() -> None:
    found = compare(np.array([1, 0], np.uint8), np.array([0, 0], np.uint8), Tolerance(max_abs=1))
    assert excess(found, Tolerance(max_abs=1)) is None and not found.checkable


def test_empty_and_scalar_outputs() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert compare(empty, empty.copy()).equal
    found = compare(np.array(2.0), np.array(3.0))
    assert found.shape == () and found.worst is not None and found.worst.index == ()


def test_type_and_shape_must_match() -> None:
    assert compare(floats(1), floats(1, dtype=np.float16)).problem == (
        "its type is float16, not float32"
    )
    assert compare(floats(1, 2), floats(1, 2).reshape(1, 2)).problem == (
        "its shape is [1, 2], not [2]"
    )
    assert compare(np.zeros((0, 2)), np.zeros((2, 0))).problem is not None


def test_integers_are_exact_unless_an_absolute_error_is_allowed() -> None:
    expected, actual = np.array([7, -9], np.int32), np.array([7, -7], np.int32)
    found = compare(expected, actual)
    assert found.max_abs == 2 and found.max_rel == pytest.approx(2 / 9) and found.cosine is None
    assert excess(found, STRICT) == "it is not equal, and no limit allows a difference"
    assert excess(found, Tolerance(max_abs=0.9)) == "absolute error 2 > 0.9"
    assert excess(found, Tolerance(max_abs=2)) is None


def test_64_bit_integers_that_float64_cannot_tell_apart() -> None:
    big = 2**63 - 1
    found = compare(np.array([5, big], np.int64), np.array([5, big - 1], np.int64))
    assert not found.equal and found.max_abs == 1
    assert found.worst is not None
    assert (found.worst.expected, found.worst.actual) == (str(big), str(big - 1))
    unsigned = compare(np.array([0], np.uint64), np.array([2**64 - 1], np.uint64))
    assert unsigned.max_abs == float(2**64 - 1)


def test_booleans_and_strings_are_exact() -> None:
    loose = Tolerance(max_abs=9, max_rel=9, cosine_min=-1)
    flags = compare(np.array([True, False, True]), np.array([True, True, False]))
    assert excess(flags, loose) == "2 of 3 elements differ"
    assert flags.worst is not None and flags.worst.index == (1,)
    words = np.array([["a", "b"]], dtype=object)
    assert compare(words, words.copy()).equal
    found = compare(words, np.array([["a", "c"]], dtype=object))
    assert found.worst is not None and found.worst.actual == "c" and excess(found, loose)


def test_complex_numbers() -> None:
    expected = np.array([3 + 4j, 1j], np.complex64)
    assert compare(expected, expected.copy()).cosine == 1
    found = compare(expected, expected + np.complex64(0.5j))
    assert found.max_abs == 0.5 and found.max_rel == pytest.approx(0.1)


def test_magnitudes_whose_squares_leave_float64() -> None:
    for scale in (1e300, 1e-300):
        found = compare(np.array([scale, 2 * scale]), np.array([scale, 2 * scale]) * (1 + 1e-9))
        assert found.cosine == pytest.approx(1) and found.max_rel == pytest.approx(1e-9, rel=1e-3)
    beyond = compare(np.array([1.7e308]), np.array([-1.7e308]))
    assert beyond.problem == "the difference is beyond float64"
    # The ratio overflows although both numbers are finite.
    assert compare(np.array([5e-324]), np.array([1e10])).max_rel is None


def test_subnormals_are_not_flushed_away() -> None:
    tiny = np.array([5e-324, 0.0])
    assert compare(tiny, np.zeros(2)).max_abs == 5e-324


def test_chunks_are_compared_like_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((7, 11)).astype(np.float32)
    actual = expected + rng.standard_normal((7, 11)).astype(np.float32) * 1e-3
    whole = compare(expected, actual)
    integers = (rng.integers(-9, 9, 77), rng.integers(-9, 9, 77))
    whole_integers = compare(*integers)
    monkeypatch.setattr(scale_module, "CHUNK", 10)
    parts = compare(expected, actual)
    assert parts.cosine == pytest.approx(whole.cosine, rel=1e-14)
    assert (parts.max_abs, parts.max_rel, parts.worst) == (
        whole.max_abs,
        whole.max_rel,
        whole.worst,
    )
    assert compare(*integers).max_abs == whole_integers.max_abs
