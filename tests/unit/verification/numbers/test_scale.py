from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from epctx.manifest import Tolerance
from epctx.verification.numbers.compare import compare, excess
from epctx.verification.numbers.scale import measure

NPU = Tolerance(cosine_min=0.99, max_rel=0.2)
EXACT = Tolerance(cosine_min=0.999999, max_rel=5e-5)
Made = Callable[[np.random.Generator], np.ndarray]


def one_element(value: float) -> Made:
    def made(rng: np.random.Generator) -> np.ndarray:
        found = rng.standard_normal((1, 1000))
        found[0, 7] = value
        return found

    return made


def causal(value: float, *, added: bool) -> Made:
    masked = np.triu(np.ones((48, 48), np.bool_), 1)

    def made(rng: np.random.Generator) -> np.ndarray:
        found = rng.standard_normal((1, 4, 48, 48))
        return found + masked * value if added else np.where(masked, value, found)

    return made


def large(axis: int, factor: float) -> Made:
    def made(rng: np.random.Generator) -> np.ndarray:
        found = rng.standard_normal((1, 64, 96))
        at = (slice(None), 5) if axis == 1 else (slice(None), slice(None), 5)
        found[at] = factor * np.random.default_rng(9).standard_normal(found[at].shape)
        return found

    return made


def detections(rng: np.random.Generator) -> np.ndarray:
    """Boxes in pixels beside scores of 80 classes, as YOLO gives them."""
    boxes = np.random.default_rng(9).uniform(0, 640, (1, 900, 4))
    scores = 1 / (1 + np.exp(4 - 2 * rng.standard_normal((1, 900, 80))))
    return np.concatenate([boxes, scores], axis=2)


SILENCERS: dict[str, Made] = {
    **{f"one element {v:g}": one_element(v) for v in (100, 1000, -1e4, -65504, -1e9, -3.4028e38)},
    **{f"causal {v:g}": causal(v, added=False) for v in (-1e4, -1e9, -3.4028e38)},
    **{f"causal added {v:g}": causal(v, added=True) for v in (-1e4, -1e9)},
    **{f"a row x {f:g}": large(1, f) for f in (10, 1000, 1e6)},
    **{f"a channel x {f:g}": large(2, f) for f in (10, 1000, 1e6)},
    "boxes beside scores": detections,
}


@pytest.mark.parametrize("tolerance", [NPU, EXACT], ids=["npu", "exact"])
@pytest.mark.parametrize("made", SILENCERS.values(), ids=SILENCERS.keys())
def test_what_is_large_does_not_silence_the_rest(made: Made, tolerance: Tolerance) -> None:
    """The large part is right to the bit, all the rest is that of another model."""
    right = made(np.random.default_rng(0)).astype(np.float32)
    other = made(np.random.default_rng(1)).astype(np.float32)
    assert excess(compare(right, other, tolerance), tolerance) is not None


@pytest.mark.parametrize("made", SILENCERS.values(), ids=SILENCERS.keys())
def test_rounding_to_float16_is_no_error_beside_what_is_large(made: Made) -> None:
    right = made(np.random.default_rng(0)).astype(np.float32)
    with np.errstate(over="ignore"):
        rounded = right.astype(np.float16).astype(np.float32)
    rounded = np.where(np.isinf(rounded), right, rounded)
    found = compare(right, rounded, NPU)
    assert excess(found, NPU) is None and found.checkable > 0.05


def test_a_wrong_mask_is_wrong() -> None:
    right = one_element(-1e9)(np.random.default_rng(0))
    other = one_element(-1e8)(np.random.default_rng(0))
    found = compare(right, other, NPU)
    assert found.worst is not None and found.worst.index == (0, 7)
    assert found.max_rel == pytest.approx(0.9)


def test_the_scale_of_an_ordinary_output_is_its_largest_magnitude() -> None:
    right = np.random.default_rng(0).standard_normal((1, 64, 96))
    found = compare(right, right + 0.01, EXACT)
    assert found.scale is not None and found.scale == np.abs(right).max()
    assert found.max_rel == pytest.approx(0.01 / found.scale)


def test_the_small_probabilities_of_a_sure_softmax_are_not_judged_by_their_own_scale() -> None:
    rng = np.random.default_rng(0)
    logits = 8 * rng.standard_normal((1, 1000))
    right, near = (np.exp(each) / np.exp(each).sum() for each in (logits, 1.005 * logits))
    assert excess(compare(right, near, NPU), NPU) is None
    other = np.exp(8 * rng.standard_normal((1, 1000)))
    assert excess(compare(right, other / other.sum(), NPU), NPU) is not None


def test_a_silent_channel_is_not_judged_by_its_noise() -> None:
    rng = np.random.default_rng(0)
    right = rng.standard_normal((1, 64, 96))
    right[0, 3] = 1e-6
    rounded = right + 1e-6 * rng.standard_normal(right.shape)
    scale = measure([right], NPU, rounded=[rounded])
    found = compare(right, right + 1e-3 * rng.standard_normal(right.shape), NPU, scale)
    assert excess(found, NPU) is None
    assert [each.unjudged for each in scale.hidden] == [{3: 1e-6}]


def detector(axis: int, scores: float) -> np.ndarray:
    """Boxes in pixels beside one score, in the channel after them."""
    rng = np.random.default_rng(0)
    boxes = rng.uniform(0, 640, (1, 400, 4))
    score = scores * rng.uniform(0, 1, (1, 400, 1)) ** 4
    return np.moveaxis(np.concatenate([boxes, score], axis=2), 2, axis)


WRONG: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "zero": np.zeros_like,
    "halved": lambda scores: scores / 2,
    "doubled": lambda scores: scores * 2,
    "negated": lambda scores: -scores,
    "of the next anchor": lambda scores: np.roll(scores, 1),
}


@pytest.mark.parametrize("tolerance", [NPU, Tolerance(cosine_min=0.9999, max_rel=1e-2)])
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_channel_that_all_others_hide_is_judged_by_its_own_scale(
    wrong: Callable[[np.ndarray], np.ndarray], axis: int, tolerance: Tolerance
) -> None:
    right = detector(axis, 1.0)
    found = right.copy()
    at = (slice(None),) * axis + (4,)
    found[at] = wrong(right[at])
    compared = compare(right, found, tolerance)
    assert excess(compared, tolerance) is not None
    assert compared.worst is not None and compared.worst.index[axis] == 4
    near = right * (1 + 1e-3)
    assert excess(compare(right, near, tolerance), tolerance) is None


def test_the_scale_of_a_hidden_slice_is_that_of_all_input_sets() -> None:
    sets = [detector(1, scores) for scores in (0.1, 1.0)]
    (hidden,) = measure(sets, NPU).hidden
    assert (hidden.axis, hidden.slices, hidden.values) == (1, (4,), 800)
    assert hidden.judged == (True,) and hidden.magnitudes[0] == sets[1][0, 4].max()


def test_hidden_slices_of_few_values_are_not_checkable() -> None:
    columns = np.array([[1e6, 2e5, 1e4, 10.0, 0.1, 1e-3]])
    (hidden,) = measure([columns, -columns], EXACT).hidden
    assert hidden.judged == (False,) * 3 and hidden.values == 2
    assert hidden.unjudged == {3: 10.0, 4: 0.1, 5: 1e-3}
    (hidden,) = measure([columns] * 16, EXACT).hidden
    assert hidden.judged == (True,) * 3 and hidden.values == 16


@pytest.mark.parametrize("size", [10, 1000])
def test_values_that_are_small_by_chance_are_no_slices_of_their_own(size: int) -> None:
    """As of logits and embeddings, of one value for each class."""
    for seed in range(20):
        output = np.random.default_rng(seed).standard_normal((1, size))
        assert not measure([output], NPU).hidden


@pytest.mark.parametrize("noise", [0.0, 1 / 128])
def test_what_rounding_explains_is_not_judged(noise: float) -> None:
    (hidden,) = measure([detector(1, 1.0)], NPU, noise=noise).hidden
    assert hidden.judged == (not noise,)


def test_blocks_have_no_scale_below_a_64th_of_the_largest() -> None:
    """Neighbours share their noise."""
    right = np.where(np.arange(1024) % 2, 0.01, -0.01)
    right[5] = 64.0
    found = right.copy()
    found[900] += 0.198
    assert compare(right, found, NPU).max_rel == pytest.approx(0.198)


def test_few_small_elements_below_large_ones_are_named() -> None:
    """Two coordinates of 5000 pixels say nothing of the two of 3."""
    right = np.array([[5000.0, 3.0, 2.5, 4900.0]])
    assert excess(compare(right, right + 2.0, NPU), NPU) is None
    (hidden,) = measure([right], NPU).hidden
    assert hidden.unjudged == {1: 3.0, 2: 2.5}
