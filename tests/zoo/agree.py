"""Whether built files compute what the source computes, told without epctx's own judge.

    python -m tests.zoo.agree SOURCE BUILT RESULT.json

Both get the inputs that `stock` found; the largest difference is over the largest finite magnitude.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from tests.zoo import stock


def difference(expected: Any, actual: Any) -> float | None:
    """Largest difference, relative to the largest magnitude; None: they cannot agree."""
    if not isinstance(expected, np.ndarray) or expected.dtype == np.object_:
        return 0.0 if repr(expected) == repr(actual) else None
    actual = np.asarray(actual)
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return None
    if expected.size == 0 or expected.tobytes() == actual.tobytes():
        return 0.0
    left, right = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(left)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return None
    scale = float(np.abs(left[finite]).max(initial=0.0)) or 1.0
    return float(np.abs(left[finite] - right[finite]).max(initial=0.0)) / scale


def main(source: Path, built: Path, result: Path) -> None:
    """Run both and write what came of it."""
    from epctx.runtime import InferenceSession

    _, feeds = stock.judge(source)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = ort.InferenceSession(str(source), options, ["CPUExecutionProvider"]).run(None, feeds)
    actual = InferenceSession(str(built)).run(None, feeds)
    found = [difference(*pair) for pair in zip(expected, actual, strict=True)]
    largest = (
        None if None in found else max((each for each in found if each is not None), default=0)
    )
    result.write_text(json.dumps({"difference": largest}), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
