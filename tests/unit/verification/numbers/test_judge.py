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


def test_each_output_has_the_limits_of_its_own_precision() -> None:
    close = {name: right * np.float32(1 + 1e-3) for name, right in STOCK.items()}
    assert told(judge(precision={"a": "float32", "b": "float16"}), close) == [("fail", "a")]
