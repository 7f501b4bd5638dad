from __future__ import annotations

import numpy as np
import pytest

from epctx.manifest import Tolerance
from epctx.verification.findings import DECADES
from epctx.verification.numbers.compare import compare, excess


def test_sqnr_is_the_ratio_of_signal_and_error_in_decibels() -> None:
    right = np.random.default_rng(0).standard_normal((4, 100))
    noise = np.random.default_rng(1).standard_normal((4, 100)) * 0.01
    found = compare(right, right + noise)
    wanted = 10 * np.log10((right**2).sum() / (noise**2).sum())
    assert found.sqnr == pytest.approx(wanted)
    assert excess(found, Tolerance(sqnr_min=wanted - 0.1)) is None
    assert (excess(found, Tolerance(sqnr_min=60.0)) or "").startswith("SQNR 40.")


def test_sqnr_sees_the_wrong_scale_that_a_cosine_does_not() -> None:
    right = np.random.default_rng(0).standard_normal(100)
    found = compare(right, right * 1.5)
    assert found.cosine == pytest.approx(1) and found.sqnr == pytest.approx(6.02, abs=0.01)


def test_sqnr_without_noise_or_signal() -> None:
    assert compare(np.ones(3), np.ones(3)).sqnr is None
    assert compare(np.zeros(3), np.ones(3)).sqnr is None
    assert compare(np.array([1.0]), np.array([1e300])).sqnr == -999


def test_nan_and_infinity_are_counted() -> None:
    output = np.array([np.nan, np.inf, -np.inf, 1.0, 2.0, np.nan, 4.0], np.float32)
    found = compare(output, output.copy())
    assert (found.nan, found.infinite) == (2, 2)


@pytest.mark.parametrize("found", [-65504.0, -65536.0, -np.inf, -1e9])
def test_what_is_beyond_the_range_of_the_ep_may_saturate(found: float) -> None:
    right = np.random.default_rng(0).standard_normal((1, 100)).astype(np.float32)
    right[0, ::3] = -1e9
    other = np.where(right < -1e5, np.float32(found), right + np.float32(1e-3))
    allowed = Tolerance(max_rel=0.01, saturates_at=65504)
    assert excess(compare(right, other, allowed), allowed) is None


@pytest.mark.parametrize("found", [65504.0, np.inf, 0.0, -60000.0, np.nan])
def test_what_saturates_keeps_its_sign_and_is_at_the_end(found: float) -> None:
    right = np.random.default_rng(0).standard_normal((1, 100)).astype(np.float32)
    right[0, 3] = -1e9
    other = right.copy()
    other[0, 3] = found
    allowed = Tolerance(max_rel=0.01, top_k_min=0, saturates_at=65504)
    assert excess(compare(right, other, allowed), allowed) is not None
    finite = Tolerance(max_rel=0.01)
    other[0, 3] = -np.inf
    assert excess(compare(right, other, finite), finite) is not None


def test_errors_are_counted_by_decades_of_their_scale() -> None:
    right = np.full(8, 2.0)
    errors = np.array([0.0, 1e-10, 1.5e-8, 5e-8, 2e-3, 0.5, 1.0, 7.0])
    found = compare(right, right * (1 + errors))
    assert found.histogram == (1, 1, 2, 0, 0, 0, 0, 1, 0, 1, 2)
    assert len(found.histogram) == len(DECADES) + 2


def test_what_is_not_finite_or_no_number_is_in_no_histogram() -> None:
    right = np.array([np.nan, np.inf, 1.0], np.float32)
    assert sum(compare(right, right).histogram) == 1
    assert compare(np.arange(3), np.arange(3)).histogram == ()
