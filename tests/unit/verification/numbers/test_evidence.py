from __future__ import annotations

import numpy as np
import pytest

from epctx.manifest import Tolerance
from epctx.verification.numbers import evidence
from epctx.verification.numbers.compare import compare, excess

NPU = Tolerance(cosine_min=0.99, max_rel=0.2)


def saturated(share: float) -> np.ndarray:
    found = np.ones(1000, np.float32)
    found[: int(1000 * share)] = np.linspace(-1, 0, int(1000 * share))
    return found


@pytest.mark.parametrize(
    ("output", "low", "high"),
    [
        (np.random.default_rng(0).standard_normal(1000), 0.85, 1.0),
        (np.zeros(100, np.float32), 0, 0),
        (np.full(100, 3.0, np.float32), 0, 0),
        (np.full(100, np.nan, np.float32), 0, 0),
        (np.array([np.nan] * 98 + [1.0, 2.0]), 0.01, 0.03),
        (100 + np.random.default_rng(0).standard_normal(1000), 0, 0),
        (saturated(0.02), 0.015, 0.021),
        (np.maximum(np.random.default_rng(0).standard_normal(10_000) - 1.7, 0), 0.95, 1.0),
        (np.full(1000, 0.001) + np.linspace(0, 1e-5, 1000), 0, 0),
        (np.zeros(9, np.int64), 0, 0),
        (np.arange(9), 1, 1),
        (np.array([True, False, False]), 1, 1),
        (np.zeros(5, np.bool_), 0, 0),
        (np.array(["a", "a"], object), 0, 0),
        (np.zeros((0, 4), np.float32), 0, 0),
        (np.array(3.5), 1, 1),
    ],
    ids=[
        *("ordinary", "zero", "constant", "NaN", "two beside NaN", "an offset", "saturated"),
        *("sparse", "nearly uniform", "integers of one value", "integers", "booleans"),
        *("booleans of one value", "text of one value", "empty", "scalar"),
    ],
)
def test_the_share_that_could_have_failed(output: np.ndarray, low: float, high: float) -> None:
    assert low <= compare(output, output.copy(), NPU).checkable <= high


def test_masked_elements_could_not_have_failed() -> None:
    output = np.full((4, 100), -1e9, np.float32)
    output[:, :10] = np.random.default_rng(0).standard_normal((4, 10))
    assert compare(output, output.copy(), NPU).checkable == pytest.approx(0.1, abs=0.02)


def test_a_tolerance_that_allows_anything_leaves_nothing_that_could_fail() -> None:
    output = np.random.default_rng(0).standard_normal(1000)
    assert compare(output, output.copy(), Tolerance(max_rel=50)).checkable == 0
    assert compare(output, output.copy(), Tolerance()).checkable == 1


def test_the_winner_of_a_sure_softmax_could_have_failed() -> None:
    output = np.full((1, 1000), 1e-6)
    output[0, 3] = 0.999
    found = compare(output, output.copy(), NPU)
    assert found.checkable == 1 and found.top_k is not None
    assert (found.top_k.rows, found.top_k.decided, found.top_k.agreeing) == (1, 1, 1)


def test_a_row_and_a_channel_that_are_the_largest_are_no_evidence_of_the_others() -> None:
    rng = np.random.default_rng(0)
    output = rng.standard_normal((1, 200, 300))
    output[:, :, 9] *= 1e6
    output[:, 5] *= 1e6
    assert compare(output, output.copy(), NPU).checkable < 0.05


def test_a_class_that_wins_everywhere_is_no_evidence_of_the_others() -> None:
    output = np.full((50, 1000), 1e-6)
    output[:, 7] = 0.999
    assert compare(output, output.copy(), NPU).checkable < 0.05
    output[0, [7, 8]] = output[0, [8, 7]]
    assert compare(output, output.copy(), NPU).checkable == 1


def test_rows_with_another_winner_fail_where_they_are_decided() -> None:
    right = np.random.default_rng(0).standard_normal((64, 10)) * 0.01
    right[np.arange(64), np.arange(64) % 10] += 1.0
    found = right.copy()
    found[0, 0] -= 0.6
    found[0, 5] += 0.6
    loose = Tolerance(max_rel=0.7, cosine_min=0.5)
    assert excess(compare(right, found, loose), loose) == (
        "other elements are the largest in 1 of 64 decided rows"
    )
    allowed = Tolerance(max_rel=0.7, cosine_min=0.5, top_k_min=0.98)
    assert excess(compare(right, found, allowed), allowed) is None


@pytest.mark.parametrize(("rows", "strays"), [(20_000, 2), (9_999, 0)])
def test_a_stray_row_of_ten_thousand_is_no_fault(rows: int, strays: int) -> None:
    rng = np.random.default_rng(0)
    right = rng.standard_normal((rows, 8))
    right[: strays + 1] *= 0.1
    noisy = right + rng.standard_normal(right.shape) * 1e-3
    for row in range(strays + 1):
        first, second = np.argsort(-right[row])[:2]
        right[row, first] = right[row, second] + 0.04
        noisy[row, [first, second]] = right[row, [second, first]]
        failure = excess(compare(right, noisy, NPU), NPU)
        assert failure is None if row < strays else f"in {row + 1} of {rows} rows" in str(failure)


def test_the_best_of_a_row_count_together_where_they_are_close() -> None:
    right = np.zeros((1, 1000))
    right[0, :4] = 0.3, 0.29, 0.28, 0.03
    right[0, 4:] = 1e-4
    near = right.copy()
    near[0, :3] = 0.28, 0.3, 0.29
    found = compare(right, near, NPU)
    assert excess(found, NPU) is None and found.checkable == 1
    assert found.top_k is not None and (found.top_k.decided, found.top_k.agreeing) == (1, 1)


def test_ties_are_no_disagreement() -> None:
    right = np.array([[1.0, 1.0, 0.9], [2.0, 1.9, 2.0]])
    found = np.array([[0.99, 1.0, 0.9], [2.0, 1.9, 1.99]])
    top_k = compare(right, found, NPU).top_k
    assert top_k is not None and top_k.decided == 0
    assert excess(compare(right, found, NPU), NPU) is None


@pytest.mark.parametrize("shape", [(7, 11, 13, 5), (3, 9), (2, 3, 9)])
def test_rows_are_the_same_in_parts(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = np.random.default_rng(0).standard_normal(shape)
    found = right + 0.3 * np.random.default_rng(1).standard_normal(shape)
    whole = compare(right, found, NPU).top_k
    monkeypatch.setattr(evidence, "_ROWS", 1)
    assert compare(right, found, NPU).top_k == whole
    assert whole is not None and whole.rows == right.size // shape[2 if len(shape) == 3 else 1]


def test_a_large_output_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    output = np.random.default_rng(0).standard_normal((1, 50, 20))
    whole = compare(output, output.copy(), NPU).checkable
    monkeypatch.setattr(evidence, "SAMPLE", 300)
    assert compare(output, output.copy(), NPU).checkable == pytest.approx(whole, abs=0.1)
