"""Many outputs judged: each by itself, told in the model's order."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from epctx.files.hashing import SMALL
from epctx.graph.inputs import Array
from epctx.manifest import Tolerance
from epctx.verification.findings import Finding, OutputNumbers
from epctx.verification.numbers.judge import Judge


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


STOCK = {"a": np.linspace(1, 2, 64, dtype=np.float32), "b": np.linspace(1, 2, 64, dtype="f4")}
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


def test_of_two_answers_the_other_one_is_right_where_the_stock_one_is_not() -> None:
    asked: list[str] = []
    held: set[str] = set()

    def other(label: str) -> dict[str, Array]:
        asked.append(label)
        return KERNELS

    files = judge(other=other, held=held)
    given = {"a": KERNELS["a"], "b": STOCK["b"]}
    assert told(files, STOCK, given, given) == [("not checkable", "a"), ("pass", "")]
    assert asked[0] == "set 1" and held == {"a"}, "not on the set on which nothing failed"
    generating = judge(other=other, held=held, sessions="generating")
    assert told(generating, given) == [("pass", "")], "it is told once for a model"
    wrong = {"a": KERNELS["a"] * np.float32(1.01), "b": STOCK["b"]}
    assert told(judge(other=other, held=held), wrong) == [("fail", "a")]
    assert told(judge(other=other), wrong) == [("not checkable", "a"), ("fail", "a")]
    both = {"a": KERNELS["a"], "b": KERNELS["a"]}
    assert told(judge(other=lambda label: both), both) == [("not checkable", "a"), ("pass", "")]


def test_answers_that_agree_let_nobody_off() -> None:
    wrong = {"a": STOCK["a"], "b": STOCK["b"] * np.float32(1.01)}
    assert told(judge(other=lambda label: KERNELS), wrong) == [("fail", "b")]
    assert told(judge(other=lambda label: {}), wrong) == [("fail", "b")], "the kernels do not run"
    against = judge(other=lambda label: wrong, right="its reference")
    assert told(against, wrong) == [("fail", "b")], "it is the source that has two answers"


def test_each_output_has_the_limits_of_its_own_precision() -> None:
    close = {name: right * np.float32(1 + 1e-3) for name, right in STOCK.items()}
    assert told(judge(precision={"a": "float32", "b": "float16"}), close) == [("fail", "a")]
