"""Seeded random values for the inputs of a model.

A value depends on the seed, the number of the set and the input's name alone: not on the order of
inputs, not on the other inputs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np

from epctx import limits
from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.graph.inputs import Array, Hint, InputSpec, Range

Feeds = dict[str, Array]
FEW: Range = (0, 1)
"""Range of integers that nothing else is known of: right for flags, masks, types and any index."""


def problems(inputs: Sequence[InputSpec], *, count: int) -> list[str]:
    """Why `count` input sets cannot be generated; nothing if they can."""
    found = [spec.problem for spec in inputs if spec.problem is not None]
    if not found:
        size = count * sum(map(_bytes, inputs))
        if size > limits.INPUT_BYTES.value:
            found.append(
                f"its generated inputs would take {size:,} bytes, more than {limits.INPUT_BYTES} "
                f"({limits.INPUT_BYTES.variable})"
            )
    return found


def _bytes(spec: InputSpec) -> int:
    assert spec.dtype is not None
    return math.prod(int(dim or 0) for dim in spec.shape) * spec.dtype.itemsize


def generate(
    inputs: Sequence[InputSpec],
    *,
    seed: int,
    index: int,
    ranges: Mapping[str, Range] | None = None,
) -> Feeds:
    """Input set number `index`: one value for each of `inputs`, all of which have no `problem`.

    Without a range: what the graph implies (`InputSpec.hint`); else floats are standard normal; 8-
    and 16-bit integers, being quantized data, use their whole range; wider ones are 0 or 1;
    booleans are even. Ranges are inclusive.

    Raises:
        ManifestError: a range is empty, outside its input's type, or without an integer in it.
    """
    given = ranges or {}
    return {spec.name: _generate(spec, _generator(seed, index, spec), given) for spec in inputs}


def assumed(inputs: Sequence[InputSpec], given: Mapping[str, Range]) -> str:
    """Words for the values that `generate` gives inputs: `'x' 0 to 255 (why)`."""

    def words(spec: InputSpec) -> str:
        if spec.name in given:
            low, high = given[spec.name]
            return f"{low:g} to {high:g} (as given)"
        if spec.hint is not None and spec.hint.values:
            listed = ", ".join(f"{value:g}" for value in spec.hint.values)
            return f"{listed} ({spec.hint.why})"
        if spec.dtype is not None and spec.dtype.kind == "b":
            return "true or false"
        if spec.hint is not None:
            return f"{spec.hint.low:g} to {spec.hint.high:g} ({spec.hint.why})"
        if spec.dtype is None or spec.dtype.kind not in "iu":
            return "normal about 0"
        return "all of its type" if spec.dtype.itemsize <= 2 else "0 or 1"

    return ", ".join(f"'{spec.name}' {words(spec)}" for spec in inputs)


def digest(feeds: Feeds) -> str:
    """SHA-256 of an input set: names, types, shapes and values, in the order of names."""
    hasher = hashlib.sha256()
    for name in sorted(feeds):
        array = feeds[name]
        hasher.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
        if array.dtype.kind == "O":  # strings, which lie elsewhere
            hasher.update(json.dumps(array.reshape(-1).tolist()).encode())
        else:
            hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hasher.hexdigest()


def _generator(seed: int, index: int, spec: InputSpec) -> np.random.Generator:
    name = int.from_bytes(hashlib.sha256(spec.name.encode()).digest()[:16], "little")
    return np.random.Generator(np.random.PCG64([seed % 2**64, index, name]))


def _generate(spec: InputSpec, rng: np.random.Generator, ranges: Mapping[str, Range]) -> Array:
    assert spec.problem is None and spec.dtype is not None, spec.problem
    shape = tuple(int(dim) for dim in spec.shape if dim is not None)
    given = ranges.get(spec.name)
    values = () if given or spec.hint is None else spec.hint.values
    if values and len(values) in (1, math.prod(shape)):
        return np.resize(np.array(values), shape).astype(spec.dtype)
    if spec.dtype.kind == "b":
        low, high = _integers(spec, given or (0, 1), 0, 1)
        return rng.integers(low, high, shape, np.int64, endpoint=True).astype(np.bool_)
    if spec.dtype.kind in "iu":
        bounds = ml_dtypes.iinfo(spec.dtype)  # type: ignore[no-untyped-call]
        whole = (int(bounds.min), int(bounds.max))
        default = spec.hint or (whole if spec.dtype.itemsize <= 2 else FEW)
        low_f, high_f = _within(default, whole)
        low, high = _integers(spec, given or (math.ceil(low_f), math.floor(high_f)), *whole)
        dtype = np.uint64 if spec.dtype.kind == "u" else np.int64
        return rng.integers(low, high, shape, dtype, endpoint=True).astype(spec.dtype)
    # ml_dtypes has no types of its own.
    limit = float(ml_dtypes.finfo(spec.dtype).max)  # type: ignore[no-untyped-call]
    if given is None:
        if spec.hint is None:
            return rng.standard_normal(shape, np.float64).astype(spec.dtype)
        given = _within(spec.hint, (-limit, limit))
    low_f, high_f = _floats(spec, given, limit)
    return rng.uniform(low_f, high_f, shape).astype(spec.dtype)


def _within(hint: Range | Hint, whole: Range) -> Range:
    """As much of a range as a type holds."""
    return max(hint[0], whole[0]), min(hint[1], whole[1])


def _integers(spec: InputSpec, given: Range, least: int, most: int) -> tuple[int, int]:
    low, high = given
    if not low <= high:
        raise _bad_range(spec, given, "its low end is above its high end")
    if not (least <= low and high <= most):
        raise _bad_range(spec, given, f"{spec.kind} holds [{least}, {most}]")
    if low != int(low) or high != int(high):
        raise _bad_range(spec, given, f"{spec.kind} holds integers only")
    return int(low), int(high)


def _floats(spec: InputSpec, given: Range, limit: float) -> Range:
    low, high = given
    if not low <= high:
        raise _bad_range(spec, given, "its low end is above its high end")
    if not (-limit <= low and high <= limit):
        raise _bad_range(spec, given, f"{spec.kind} holds [-{limit:g}, {limit:g}]")
    if high - low == np.inf:
        raise _bad_range(spec, given, "it is wider than float64 can tell")
    return low, high


def _bad_range(spec: InputSpec, given: Range, why: str) -> ManifestError:
    return ManifestError(
        f"the range [{given[0]:g}, {given[1]:g}] of input '{spec.name}' cannot be used",
        where="verify.inputs.ranges",
        why=why,
        remedy="change it to [low, high], both inclusive",
        code=Code.VERIFY_INPUTS,
    )
