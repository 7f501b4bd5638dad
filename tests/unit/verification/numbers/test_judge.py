"""Many outputs judged: each by itself, told in the model's order."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from epctx.files.hashing import SMALL
from epctx.graph.inputs import Array
from epctx.manifest import Tolerance
from epctx.verification.findings import Finding, OutputNumbers
from epctx.verification.numbers.input_sets import Case
from epctx.verification.numbers.judge import Judge, constant
from epctx.verification.numbers.unoptimized import Rerun


def test_large_outputs_are_told_in_order_each_with_its_own_error() -> None:
    """They are compared on several cores: more of them than threads, the first one the largest."""
    expected = {
        f"y{number}": np.ones(SMALL >> number, np.float32) * (number + 1) for number in range(8)
    }
    actual = {name: right.copy() for name, right in expected.items()}
    actual["y2"][0] = 4.5
    del actual["y5"]
    judge = Judge(
        file="m_ctx.onnx",
        sessions="files",
        providers=(),
        precision="float32",
        asked=Tolerance(max_abs=1e-3),
    )
    told = list(judge.judge("set 0", expected, actual))
    names = [each.output for each in told if isinstance(each, OutputNumbers)]
    assert names == [name for name in expected if name != "y5"]
    errors = {
        each.output: each.comparison.max_abs for each in told if isinstance(each, OutputNumbers)
    }
    assert {name: error for name, error in errors.items() if error} == {"y2": 1.5}
    failed = [each.message for each in told if isinstance(each, Finding)]
    assert "output 'y2'" in failed[0] and "output 'y5' is missing" in failed[1]
    assert [type(each) for each in told].index(Finding) == 3, "right after the numbers of y2"


def test_an_integer_output_within_its_limit_needs_no_gain() -> None:
    """Every element is 0 where 1 is right: the results have no power to compare."""
    whole = judge(asked=Tolerance(max_abs=1))
    findings = list(whole.judge("set 0", {"y": np.zeros(64, "i1")}, {"y": np.ones(64, "i1")}))
    findings += whole.summary()
    assert "fail" not in {each.outcome for each in findings if isinstance(each, Finding)}


STOCK: dict[str, np.ndarray] = {
    "a": np.linspace(1, 2, 64, dtype=np.float32),
    "b": np.linspace(1, 2, 64, dtype="f4"),
}
KERNELS = {"a": STOCK["a"][::-1].copy(), "b": STOCK["b"] * np.float32(1 + 1e-6)}


def judge(**how: Any) -> Judge:
    given: dict[str, Any] = {
        "file": "m",
        "sessions": "files",
        "providers": (),
        "asked": Tolerance(),
    }
    return Judge(**{**given, "precision": "float32", **how})


def told(one: Judge, *actual: Mapping[str, Array]) -> list[tuple[str, str]]:
    """The outcomes of findings, and of which outputs."""
    found = [f for i, each in enumerate(actual) for f in one.judge(f"set {i}", STOCK, each)]
    findings = [each for each in found if isinstance(each, Finding)]
    names = ((str(f.outcome), f.message.partition("output '")[2][:1]) for f in findings)
    return [*names, *((str(f.outcome), "") for f in one.summary())]


def again(answer: Callable[[], Mapping[str, Array]], asked: list[str] | None = None) -> Rerun:
    """A source whose kernels give `answer`; the input sets are asked for by their numbers."""

    def compute(feeds: Mapping[str, Array], optimized: bool) -> Mapping[str, Array]:
        assert not optimized
        if asked is not None:
            asked.append(f"set {feeds['n']}")
        return answer()

    cases = {f"set {n}": Case(label=f"set {n}", feeds={"n": np.array(n)}) for n in range(3)}
    return Rerun(compute, cases)


def test_of_two_answers_the_other_one_is_right_where_the_stock_one_is_not() -> None:
    asked: list[str] = []
    source = again(lambda: KERNELS, asked)
    given = {"a": KERNELS["a"], "b": STOCK["b"]}
    found = told(judge(rerun=source), STOCK, given, given)
    assert found == [("not checkable", "a"), ("pass", "")]
    assert asked[0] == "set 1" and source.held == {"a"}, "not on the set on which nothing failed"
    generating = judge(rerun=source, sessions="generating")
    assert told(generating, given) == [("pass", "")], "it is told once for a model"
    wrong = {"a": KERNELS["a"] * np.float32(1.01), "b": STOCK["b"]}
    assert told(judge(rerun=source), wrong) == [("fail", "a")]
    assert told(judge(rerun=again(lambda: KERNELS)), wrong) == [
        ("not checkable", "a"),
        ("fail", "a"),
    ]
    both = {"a": KERNELS["a"], "b": KERNELS["a"]}
    assert told(judge(rerun=again(lambda: both)), both) == [("not checkable", "a"), ("pass", "")]


def test_answers_that_agree_let_nobody_off() -> None:
    wrong = {"a": STOCK["a"], "b": STOCK["b"] * np.float32(1.01)}

    def refused() -> Mapping[str, Array]:
        raise RuntimeError("no kernel")

    assert told(judge(rerun=again(lambda: KERNELS)), wrong) == [("fail", "b")]
    assert told(judge(rerun=again(refused)), wrong) == [("fail", "b")]


NPU = Tolerance(cosine_min=0.99, max_rel=0.2)


def summed_up(one: Judge, *pairs: tuple[Any, Any]) -> list[Finding]:
    """All findings on input sets of one output, the right ones and what is judged."""
    found: list[Finding | OutputNumbers] = []
    for number, (right, actual) in enumerate(pairs):
        found += one.judge(f"set {number}", {"y": right}, {"y": actual})
    return [each for each in (*found, *one.summary()) if isinstance(each, Finding)]


def scores(seed: int) -> np.ndarray:
    """Boxes of 400 anchors in pixels, and a score of each in the last channel."""
    rng = np.random.default_rng(seed)
    found = rng.uniform(0, 640, (1, 5, 400)).astype(np.float32)
    found[0, 4] = rng.uniform(0, 1, 400)
    return found


def test_a_gain_fails_float_models_and_is_told_of_quantized_ones() -> None:
    pairs = [(x, x * np.float32(1.1)) for x in (STOCK["a"], STOCK["b"][::-1])]
    (found,) = summed_up(judge(asked=NPU), *pairs)
    assert found.outcome == "fail"
    assert found.message.startswith("output 'y': over all input sets it is 1.1 times what is right")
    note, passed = summed_up(judge(asked=NPU, precision="quantized"), *pairs)
    assert note.outcome == passed.outcome == "pass" and "1.1 times" in note.message
    (found,) = summed_up(judge(asked=replace(NPU, gain_max=0.2)), *pairs)
    assert found.outcome == "pass"
    (one, _), (other, _) = pairs
    up_and_down = [(one, one * np.float32(1.1)), (other, other * np.float32(0.9))]
    (found,) = summed_up(judge(asked=NPU), *up_and_down)
    assert found.outcome == "pass", "it is that of all input sets"


def test_the_gain_of_a_hidden_slice_is_its_own() -> None:
    right = scores(0)
    wrong = right.copy()
    wrong[0, 4] *= 1.1
    (found,) = summed_up(judge(asked=NPU), (right, wrong))
    assert found.outcome == "fail" and "output 'y', slice 4 of axis 1: over all" in found.message


def test_the_cosine_of_a_hidden_slice_is_its_own() -> None:
    """An error of 15 % of the slice's scale, of which the whole output's cosine sees little."""
    right = scores(0)
    wrong = right.copy()
    wrong[0, 4] += 0.15 * np.where(np.arange(400) % 2, 1, -1)
    (found,) = summed_up(judge(asked=NPU), (right, wrong))
    assert found.outcome == "fail" and "slice 4 of axis 1: cosine 0.9" in found.message


def test_probabilities_are_off_by_little_on_average() -> None:
    """A Sigmoid that is wrong by 0.05 everywhere; one that is right to a hundredth."""
    right = scores(0)[:, 4]
    shifted = np.where(right > 0.5, right - 0.05, right + 0.05)
    asked = replace(NPU, floor=0.01)
    (found,) = summed_up(judge(asked=asked), (right, shifted))
    assert found.outcome == "fail" and "mean error of probabilities 0.05 > 0.01" in found.message
    near = np.where(right > 0.5, right - 0.009, right + 0.009)
    assert [f.outcome for f in summed_up(judge(asked=asked), (right, near))] == ["pass"]
    small = right * np.float32(2e-4)
    (found,) = summed_up(judge(asked=asked), (small, np.zeros_like(small)))
    assert found.outcome == "not checkable", "all of it lies below the floor"


def test_slices_that_cannot_be_judged_are_named() -> None:
    columns = np.array([[1e6, 2e5, 1e4, 10.0, 0.1, 1e-3]])
    doubled = columns * [1, 1, 1, 1, 2, 2]
    (found,) = (f for f in summed_up(judge(), (columns, doubled)) if f.outcome != "pass")
    assert found.outcome == "not checkable" and "(0.1), 5 (0.001)" in found.message
    assert "with 1 value each" in found.message and "more input sets" in found.remedy


def test_the_scale_is_that_of_all_input_sets() -> None:
    """The second set tells that a score is no noise, and the first one is judged by it."""
    small, large = scores(0), scores(1)
    small[0, 4] *= 0.01
    wrong = small.copy()
    wrong[0, 4] = 0.9
    sets = {"set 0": {"y": small}, "set 1": {"y": large}}
    found = summed_up(judge(asked=NPU, known=sets), (small, wrong), (large, large))
    assert (
        found[0].outcome == "fail"
        and "slice 4 of axis 1 has a scale of its own, 0.993 beside" in found[0].message
    )


def test_what_rounding_explains_is_no_failure() -> None:
    """A channel that is what is left of large numbers changes with the last bits of the inputs."""
    right = scores(0)
    noisy = right.copy()
    noisy[0, 4] += 0.3
    rounded = right.copy()
    rounded[0, 4] += np.float32(0.2)
    known = {"set 0": {"y": right}}

    def compute(feeds: Mapping[str, Array], optimized: bool) -> Mapping[str, Array]:
        return {"y": rounded if optimized else right}

    cases = {"set 0": Case(label="set 0", feeds={"x": np.ones(3, np.float32)})}
    found = summed_up(judge(asked=NPU, known=known, rerun=Rerun(compute, cases)), (right, noisy))
    assert [f.outcome for f in found] == ["not checkable", "pass"]
    assert "as noise is: 4 (" in found[0].message
    steady = Rerun(lambda feeds, optimized: {"y": right}, cases)
    found = summed_up(judge(asked=NPU, known=known, rerun=steady), (right, noisy))
    assert found[0].outcome == "fail"


def test_the_best_of_a_row_may_not_change_without_an_error_that_explains_it() -> None:
    right = np.random.default_rng(0).standard_normal((1, 1000))
    best = np.argsort(-right[0])[:2]
    wrong = right.copy()
    wrong[0, best] = right[0, best[::-1]]
    (found, *_) = summed_up(judge(asked=NPU), (right, wrong))
    assert found.outcome == "fail" and "in 1 of 1 rows, by more than the error" in found.message


def test_the_error_of_a_cache_is_that_of_the_position_that_is_computed() -> None:
    rng = np.random.default_rng(0)
    right = rng.standard_normal((1, 8, 1024, 64)).astype(np.float32)
    right[0, :, -1, :8] = 2 + np.arange(8)[:, None] * 0.012
    actual = right.copy()
    actual[:, :, -1] += rng.standard_normal((1, 8, 64)).astype(np.float32) / 100
    found = summed_up(judge(asked=NPU), (right, actual))
    assert [each.outcome for each in found] == ["pass"]


def test_each_output_has_the_limits_of_its_own_precision() -> None:
    close = {name: right * np.float32(1 + 1e-3) for name, right in STOCK.items()}
    assert told(judge(precision={"a": "float32", "b": "float16"}), close) == [("fail", "a")]


def test_what_is_the_same_on_all_input_sets_is_constant() -> None:
    one, nan = np.ones((1, 4), np.float32), np.array([np.nan, 1.0], np.float32)
    assert constant([{"y": one, "z": one}, {"y": one, "z": 2 * one}]) == {"y"}
    assert constant([{"y": one}]) == frozenset()
    assert constant([{"y": nan, "z": nan}, {"y": nan, "z": nan.astype("f8")}]) == {"y"}
    parts = [{"s[0]": one, "s[1]": one}, {"s[0]": one}]
    assert constant(parts) == {"s[0]"}, "a sequence is longer on one of them"


def test_a_channel_inside_the_model_may_vanish_and_one_of_an_output_may_not() -> None:
    right = np.random.default_rng(0).standard_normal((1, 32, 64)).astype(np.float32)
    right[0, 7] *= 1e-4
    actual = right.copy()
    actual[0, 7] = 0
    for inner, outcomes in ((frozenset(), [False]), (frozenset("h"), [True])):
        told = judge(asked=Tolerance(max_rel=1e-3), inner=inner).judge(
            "set 0", {"h": right}, {"h": actual}
        )
        assert [n.passed for n in told if isinstance(n, OutputNumbers)] == outcomes
    actual[0, 8] *= 1.1
    (told_wrong, _) = judge(asked=Tolerance(max_rel=1e-3), inner=frozenset("h")).judge(
        "set 0", {"h": right}, {"h": actual}
    )
    assert isinstance(told_wrong, OutputNumbers) and not told_wrong.passed
