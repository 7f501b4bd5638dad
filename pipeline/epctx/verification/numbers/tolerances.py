"""What a model's numbers may differ by: by EP and precision, unless the manifest says.

A manifest's limits replace the defaults one by one; a limit that it does not name stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import onnx
from msgspec.structs import asdict, replace

from epctx.graph.serde import protos
from epctx.manifest import Tolerance
from epctx.providers.base import ExecutionProvider
from epctx.providers.hooks import Precision, SetsTolerance
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

_LEAST_EXACT_FIRST: Final[tuple[tuple[int, Precision], ...]] = (
    (onnx.TensorProto.BFLOAT16, "bfloat16"),
    (onnx.TensorProto.FLOAT16, "float16"),
    (onnx.TensorProto.FLOAT, "float32"),
    (onnx.TensorProto.DOUBLE, "float64"),
)


def precision(model: onnx.ModelProto) -> Precision:
    """Of a source model: quantized, else the least exact type of its weights and edges."""
    if any(_is_quantized(node.op_type) for node in protos.nodes(model)):
        return "quantized"
    kinds = {tensor.data_type for tensor in protos.tensors(model)}
    for info in (*model.graph.input, *model.graph.output):
        kinds.add(info.type.tensor_type.elem_type)
    return next((word for kind, word in _LEAST_EXACT_FIRST if kind in kinds), "float32")


def _is_quantized(op: str) -> bool:
    return "QuantizeLinear" in op or op.startswith("QLinear") or op.endswith("Integer")


def limits(
    providers: Iterable[ExecutionProvider], of: Precision, dtype: str, asked: Tolerance
) -> Tolerance:
    """The limits for an output of type `dtype`: the loosest of the EPs', then the manifest's.

    Integers, booleans and strings are exact unless an EP or the manifest gives a `max_abs`.
    """
    defaults = [_default(provider, of, dtype) for provider in providers]
    if not defaults:
        found = of_type(of, dtype)
    elif is_floating(dtype):
        found = _loosest(defaults)
    else:  # without a limit it is exact
        steps = [t.max_abs for t in defaults if t.max_abs is not None]
        found = Tolerance(max_abs=max(steps, default=None))
    given = {name: value for name, value in asdict(asked).items() if value is not None}
    return replace(found, **given)


def _default(provider: ExecutionProvider, of: Precision, dtype: str) -> Tolerance:
    if isinstance(provider, SetsTolerance):
        return provider.tolerance(of, dtype)
    return of_type(of, dtype)


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
