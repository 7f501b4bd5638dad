"""The judge: does a stock session load the model, and does it run with inputs made up for it?

    python -m tests.zoo.stock MODEL RESULT.json

The session is ONNX Runtime's CPU EP without graph optimization. Nothing of epctx is used. Symbolic
dimensions get sizes that make the model run, the same name the same size.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort

SIZES = (1, 4, 2, 8, 16, 32, 64, 3)
"""Sizes to try for symbolic dimensions, all of one size first."""
FILLS = ("few", "zeros", "ones", "normal")
"""Kinds of values to try: integers from 0 to 3, nothing, ones, many."""
TYPES: Mapping[str, Any] = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "bool": np.bool_,
    "string": np.object_,
    **{
        f"{sign}int{bits}": np.dtype(f"{sign}int{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}

Feeds = dict[str, Any]


def judge(model: Path) -> tuple[dict[str, Any], Feeds]:
    """What a stock session does with `model`, and the inputs that it ran with."""
    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(str(model), options, ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class
        return {"loads": False, "runs": False, "error": str(error)[:1000]}, {}
    why = ""
    for sizes in _sizes(session):
        for fill in FILLS:
            try:
                feeds = {each.name: _value(each, sizes, fill) for each in session.get_inputs()}
                outputs = session.run(None, feeds)
                again = session.run(None, feeds)
            except Exception as error:  # as above
                why = str(error)[:1000]
                continue
            result = {
                "loads": True,
                "runs": True,
                "sizes": sizes,
                "fill": fill,
                "repeats": all(map(_same, outputs, again)),
                "finite": all(map(_finite, outputs)),
            }
            return result, feeds
    return {"loads": True, "runs": False, "error": why}, {}


def _sizes(session: ort.InferenceSession) -> Iterator[dict[str, int]]:
    """Sizes by the name of a symbolic dimension; sums of two others, where the name says so."""
    shapes = [each.shape for each in session.get_inputs() if each.type.startswith("tensor")]
    names = sorted({size for shape in shapes for size in shape if isinstance(size, str)})
    plain = [name for name in names if "total" not in name and "+" not in name]
    for size in SIZES:
        yield _summed(dict.fromkeys(plain, size), names)
        if not names:
            return
    choices = [(4, 0, 1) if "past" in name else (1, 4, 16) for name in plain]
    for chosen in itertools.islice(itertools.product(*choices), 300):
        yield _summed(dict(zip(plain, chosen, strict=True)), names)


def _summed(sizes: dict[str, int], names: Sequence[str]) -> dict[str, int]:
    for name in names:
        if name not in sizes:
            parts = [sizes[part.strip()] for part in name.split("+") if part.strip() in sizes]
            past = [size for other, size in sizes.items() if "past" in other or "sequence" in other]
            sizes[name] = sum(parts) if len(parts) > 1 else sum(past[:2]) or 1
    return sizes


def _value(described: Any, sizes: Mapping[str, int], fill: str) -> Any:
    inner = re.search(r"tensor\((\w+)\)", described.type)
    if inner is None:
        raise ValueError(f"no value can be made up for an input of type {described.type}")
    dtype = TYPES[inner[1]]
    shape = [
        sizes.get(size, 1) if isinstance(size, str) else 1 if size is None else size
        for size in described.shape
    ]
    if described.type.startswith("seq"):
        return [np.ones((2, 3)).astype(dtype)] * 2
    random = np.random.default_rng(len(described.name))
    if dtype is np.object_:
        return np.full(shape, "a", np.object_)
    if fill in ("zeros", "ones"):
        return np.full(shape, fill == "ones").astype(dtype)
    if np.issubdtype(dtype, np.integer) or dtype is np.bool_:
        return random.integers(
            0, 2 if dtype is np.bool_ else 4 if fill == "few" else 100, shape
        ).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _same(left: Any, right: Any) -> bool:
    """Whether two outputs are equal: arrays byte by byte, sequences and maps as they print."""
    if isinstance(left, np.ndarray) and left.dtype != np.object_:
        return left.tobytes() == np.asarray(right).tobytes()
    return repr(left) == repr(right)


def _finite(value: Any) -> bool:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return True
    return bool(np.isfinite(value).all())


if __name__ == "__main__":
    found, _ = judge(Path(sys.argv[1]))
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")
