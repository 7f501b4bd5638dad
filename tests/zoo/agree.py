"""Whether built files compute what the source computes, told without epctx's own judge.

    python -m tests.zoo.agree SOURCE BUILT RESULT.json

Both get the inputs that `stock` found; differences are over the largest finite magnitude.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
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


def largest(expected: Sequence[Any], actual: Sequence[Any]) -> float | None:
    """The largest difference of any output; None: they cannot agree."""
    found = [difference(*pair) for pair in zip(expected, actual, strict=True)]
    known = [each for each in found if each is not None]
    return max(known, default=0.0) if len(known) == len(found) else None


def answers(source: Path, feeds: stock.Feeds) -> Iterator[Sequence[Any]]:
    """Compute it without optimization, in a stock session, and in one that multiplies integers
    without saturation, where that loads: all three are ONNX Runtime's answers.

    They are far apart where a session multiplies in integers, or variances are small.
    """
    for level, precise in (("DISABLE_ALL", "0"), ("ENABLE_ALL", "0"), ("ENABLE_ALL", "1")):
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
        options.add_session_config_entry("session.x64quantprecision", precise)
        try:
            session = ort.InferenceSession(str(source), options, ["CPUExecutionProvider"])
        except Exception:
            if precise == "0":
                raise
            continue
        yield session.run(None, feeds)


def main(source: Path, built: Path, result: Path) -> None:
    """Run both and write what came of it."""
    from epctx.runtime import InferenceSession

    _, feeds = stock.judge(source)
    actual = InferenceSession(str(built)).run(None, feeds)
    found = [largest(each, actual) for each in answers(source, feeds)]
    known = [each for each in found if each is not None]
    result.write_text(json.dumps({"difference": min(known, default=None)}), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
