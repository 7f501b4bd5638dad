"""Limits of a model's numbers: by EP and precision, unless the manifest says otherwise.

A manifest's limits replace the defaults one by one; a limit that it does not name stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import asdict, replace

from epctx.manifest import Tolerance
from epctx.providers.base import ExecutionProvider, Precision
from epctx.verification.numbers.compare import is_floating

DEFAULTS: Final[dict[Precision, Tolerance]] = {
    "float64": Tolerance(cosine_min=0.999999, max_rel=1e-9),
    "float32": Tolerance(cosine_min=0.999999, max_rel=1e-5),
    "float16": Tolerance(cosine_min=0.9999, max_rel=1e-2),
    "bfloat16": Tolerance(cosine_min=0.999, max_rel=5e-2),
    "quantized": Tolerance(cosine_min=0.999, max_rel=5e-2),
}
"""For an EP that does not say: those of one that computes in the model's own types, as the
reference EP does (design section 8). An edge of a partition that ONNX Runtime's fusions do not
cross moves a quantized value by a step or two."""

GAIN: Final = 0.04
"""Largest difference of a gain from 1 that a correct model of the zoo has, rounded up."""
_FLOORS: Final[Mapping[Precision, float]] = {"quantized": 0.02}
_FLOOR: Final = 0.01
"""An error of a probability that is none, where an EP computes in less than the model's types."""
_LOOSE: Final = 0.1
"""Value of `max_rel` from which on an EP computes in less than the model's types."""

# The order of sums counts in the larger types: it moves a ResNet-50 by 2**-14.
_UNITS: Final[Mapping[Precision, float]] = {
    "float64": 2.0**-33,
    "float32": 2.0**-17,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "quantized": 2.0**-8,
}


def limits(
    providers: Iterable[ExecutionProvider],
    of: Precision,
    dtype: str,
    asked: Tolerance,
    *,
    probability: bool = False,
) -> Tolerance:
    """Return the limits for an output: the loosest of the EPs', then the manifest's.

    Integers, booleans and strings are exact unless an EP or the manifest gives a `max_abs`.

    Args:
        of: its precision.
        dtype: its type.
        asked: the manifest's limits.
        probability: whether a Sigmoid or Softmax makes it.
    """
    defaults = [_default(provider, of, dtype) for provider in providers]
    if not defaults:
        found = of_type(of, dtype)
    elif is_floating(dtype):
        found = _loosest(defaults)
    else:  # without a limit it is exact
        steps = [t.max_abs for t in defaults if t.max_abs is not None]
        found = Tolerance(max_abs=max(steps, default=None))
    if is_floating(dtype) and of != "quantized":
        found = replace(found, gain_max=GAIN)
    if probability and is_floating(dtype):
        loose = of == "quantized" or (found.max_rel or 0.0) >= _LOOSE
        found = replace(found, floor=_FLOORS.get(of, _FLOOR) if loose else None)
    given = {name: value for name, value in asdict(asked).items() if value is not None}
    return replace(found, **given)


def unit(of: Precision, allowed: Tolerance) -> float:
    """Return how far an EP may round a value, as a part of it, that keeps to these limits."""
    loose = _UNITS["float16"] if (allowed.max_rel or 0.0) >= _LOOSE else 0.0
    return max(_UNITS[of], loose)


def _default(provider: ExecutionProvider, of: Precision, dtype: str) -> Tolerance:
    own = provider.tolerance(of, dtype)
    return of_type(of, dtype) if own is None else own


def of_type(of: Precision, dtype: str) -> Tolerance:
    """The limits for an output of type `dtype`, of an EP that does not say."""
    return DEFAULTS[of] if is_floating(dtype) else Tolerance()


def _loosest(all_: Sequence[Tolerance]) -> Tolerance:
    """Limit by limit; an EP without a limit is the loosest in it."""
    return Tolerance(
        cosine_min=_pick(min, [t.cosine_min for t in all_]),
        max_abs=_pick(max, [t.max_abs for t in all_]),
        max_rel=_pick(max, [t.max_rel for t in all_]),
        sqnr_min=_pick(min, [t.sqnr_min for t in all_]),
        top_k_min=_pick(min, [t.top_k_min for t in all_]),
        saturates_at=min((t.saturates_at for t in all_ if t.saturates_at), default=None),
    )


def _pick(choose: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return choose(given) if len(given) == len(values) else None
