"""Limits of a model's numbers: by EP and precision, unless the manifest says otherwise.

The precision of an output is that of the least exact value that it depends on. An output of
probabilities also has a floor: a small absolute error counts as none, even beside a small
probability. The manifest's limits replace the defaults one by one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import onnx
from msgspec.structs import asdict, replace

from epctx.errors import ModelError
from epctx.graph import structure
from epctx.graph.prepare import functions
from epctx.graph.serde import protos
from epctx.inference import values
from epctx.manifest import Tolerance
from epctx.providers.base import ExecutionProvider, Precision
from epctx.verification.numbers.compare import is_floating

Precisions = Precision | Mapping[str, Precision]
"""One precision for all outputs, or one for each, by name."""
_RANKED: Final[tuple[Precision, ...]] = ("quantized", "bfloat16", "float16", "float32", "float64")
"""Precisions, the least exact first; a rank is an index of this tuple."""
_EXACT: Final = len(_RANKED)
"""The rank of values that no floating-point number affects."""
_OF_TYPES: Final[Mapping[int, int]] = {
    onnx.TensorProto.BFLOAT16: 1,
    onnx.TensorProto.FLOAT16: 2,
    onnx.TensorProto.FLOAT: 3,
    onnx.TensorProto.DOUBLE: 4,
}


def precisions(
    model: onnx.ModelProto,
    fed: Mapping[str, Precision] | None = None,
    also: Iterable[str] = (),
) -> dict[str, Precision]:
    """Return the precision of each output, from the nodes that it depends on.

    It is "quantized" after a node that quantizes; else types of inputs, weights and casts decide.

    Args:
        fed: precisions of inputs, where their values are less exact than their types.
        also: values of the main graph whose precision is returned, too.

    Raises:
        ModelError: local functions of the model cannot be inlined.
    """
    where = f"graph {model.graph.name}"
    inlined = onnx.ModelProto()
    inlined.CopyFrom(functions.inlined(model, where=where))
    with contextlib.suppress(ModelError):  # an unsorted graph needs more passes below
        structure.normalize(inlined, where=where)
    ranks = {name: _RANKED.index(of) for name, of in (fed or {}).items()}
    while (updated := _ranks(inlined.graph, ranks)) != ranks:  # nodes may come before their inputs
        ranks = updated
    names = [*(info.name for info in model.graph.output), *also]
    return {name: (*_RANKED, "float32")[ranks.get(name, _EXACT)] for name in names}


def of_output(output: str, of: Precisions) -> Precision:
    """Return the precision of an output, or of the sequence or map that `output` is a part of."""
    if isinstance(of, str):
        return of
    wholes = (name for name in of if values.suffix(output, name) is not None)
    return of[output] if output in of else of.get(next(wholes, ""), "float32")


def _ranks(graph: onnx.GraphProto, outer: Mapping[str, int]) -> dict[str, int]:
    """Return the ranks of a graph's values, together with the known ranks of outer values."""
    types = {i.name: i.type.tensor_type.elem_type for i in (*graph.output, *graph.input)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    own = {name: _OF_TYPES.get(kind, _EXACT) for name, kind in types.items()}
    by_name = {**outer, **{name: min(rank, outer.get(name, rank)) for name, rank in own.items()}}
    for node in graph.node:
        rank = min(
            (*_own(node), *(by_name.get(name, _EXACT) for name in node.input)), default=_EXACT
        )
        ranks = [_EXACT if node.op_type in ("Shape", "Size") else rank] * len(node.output)
        for body in protos.subgraphs(node):
            inner = _ranks(body, {**by_name, **{info.name: rank for info in body.input}})
            ends = [inner.get(info.name, _EXACT) for info in body.output]
            if node.op_type != "If":  # a loop feeds all outputs of its body to the next iteration
                ends = [min(ends, default=_EXACT)] * len(ranks)
            ranks = list(map(min, ranks, ends))
        outputs = zip(node.output, ranks, strict=False)
        by_name.update((name, min(rank, own.get(name, _EXACT))) for name, rank in outputs if name)
    return by_name


def _own(node: onnx.NodeProto) -> Iterator[int]:
    """Yield the ranks that a node sets by itself: it quantizes, casts, or is a constant."""
    op = node.op_type
    if "QuantizeLinear" in op or op.startswith("QLinear") or op.endswith("Integer"):
        yield 0
    kinds = [a.i for a in node.attribute if a.name in ("dtype", "to")]
    kinds += [t.data_type for a in node.attribute for t in protos.tensors_of(a)]
    yield from (_OF_TYPES.get(kind, _EXACT) for kind in kinds)


_MAKE: Final = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
_KEEP: Final = frozenset(
    {
        *("Cast", "Clip", "Compress", "Concat", "DepthToSpace", "DequantizeLinear", "Dropout"),
        *("Expand", "Flatten", "Gather", "GatherElements", "GatherND", "GlobalAveragePool"),
        *("GlobalMaxPool", "Identity", "Max", "MaxPool", "Pad", "QuantizeLinear", "ReduceMax"),
        *("ReduceMean", "ReduceMin", "Reshape", "Resize", "ScatterND", "Slice", "SpaceToDepth"),
        *("Split", "Squeeze", "Tile", "TopK", "Transpose", "Unsqueeze", "Upsample", "Where"),
    }
)
"""Ops that move, select or average values: their outputs are probabilities if one input is."""
_PRODUCTS: Final = frozenset({"Min", "Mul"})
"""Ops that keep probabilities if all inputs are: a Mul of a Sigmoid and its input is an activation.
"""


def probability_outputs(model: onnx.ModelProto) -> frozenset[str]:
    """Return the names of the outputs that end in a Sigmoid or Softmax, even if only in parts.

    Raises:
        ModelError: local functions of the model cannot be inlined.
    """
    model = functions.inlined(model, where=f"graph {model.graph.name}")
    probabilities = _probabilities(model.graph, frozenset())
    return frozenset(info.name for info in model.graph.output if info.name in probabilities)


def _probabilities(graph: onnx.GraphProto, outer: frozenset[str]) -> frozenset[str]:
    """Return the names of probabilities in a graph and in the graphs around it."""
    probabilities = set(outer)
    for node in graph.node:
        flags = [name in probabilities for name in node.input if name]
        if (
            node.op_type in _MAKE
            or (node.op_type in _KEEP and any(flags))
            or (node.op_type in _PRODUCTS and flags and all(flags))
        ):
            probabilities.update(node.output)
        for body in protos.subgraphs(node) if node.op_type == "If" else ():
            inner = _probabilities(body, frozenset(probabilities))
            pairs = zip(body.output, node.output, strict=False)
            probabilities.update(name for info, name in pairs if info.name in inner)
    return frozenset(probabilities)


DEFAULTS: Final[dict[Precision, Tolerance]] = {
    "float64": Tolerance(cosine_min=0.999999, max_rel=1e-9),
    "float32": Tolerance(cosine_min=0.999999, max_rel=1e-5),
    "float16": Tolerance(cosine_min=0.9999, max_rel=1e-2),
    "bfloat16": Tolerance(cosine_min=0.999, max_rel=5e-2),
    "quantized": Tolerance(cosine_min=0.999, max_rel=5e-2),
}
"""Defaults for an EP without its own limits: those of an EP that computes in the model's own types,
like the reference EP (design section 8). A quantized value moves by a step or two if ONNX Runtime's
fusions cannot cross the edge of a partition."""

GAIN: Final = 0.04
"""Largest difference of a gain from 1 that a correct model of the zoo has, rounded up."""
_FLOORS: Final[Mapping[Precision, float]] = {"quantized": 0.02}
_FLOOR: Final = 0.01
"""Floor of errors of probabilities, for an EP that computes in smaller types than the model's."""
_LOOSE: Final = 0.1
"""With this `max_rel` or more, an EP computes in smaller types than the model's."""

# In the larger types the order of sums matters: it moves a ResNet-50 by 2**-14.
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
    """Return the limits for an output: the loosest of its EPs, replaced by those of the manifest.

    Integers, booleans and strings are exact unless an EP or the manifest gives a `max_abs`.

    Args:
        of: precision of the output.
        dtype: type of the output.
        asked: the manifest's limits.
        probability: a Sigmoid or Softmax makes the output.
    """
    defaults = [_default(provider, of, dtype) for provider in providers]
    if not defaults:
        tolerance = of_type(of, dtype)
    elif is_floating(dtype):
        tolerance = _loosest(defaults)
    else:  # without a limit the output is exact
        steps = [t.max_abs for t in defaults if t.max_abs is not None]
        tolerance = Tolerance(max_abs=max(steps, default=None))
    if is_floating(dtype) and of != "quantized":
        tolerance = replace(tolerance, gain_max=GAIN)
    if probability and is_floating(dtype):
        loose = of == "quantized" or (tolerance.max_rel or 0.0) >= _LOOSE
        tolerance = replace(tolerance, floor=_FLOORS.get(of, _FLOOR) if loose else None)
    overrides = {name: value for name, value in asdict(asked).items() if value is not None}
    return replace(tolerance, **overrides)


def unit(of: Precision, allowed: Tolerance) -> float:
    """Return how far an EP within these limits may round a value, as a share of the value."""
    loose = _UNITS["float16"] if (allowed.max_rel or 0.0) >= _LOOSE else 0.0
    return max(_UNITS[of], loose)


def _default(provider: ExecutionProvider, of: Precision, dtype: str) -> Tolerance:
    own = provider.tolerance(of, dtype)
    return of_type(of, dtype) if own is None else own


def of_type(of: Precision, dtype: str) -> Tolerance:
    """Return the limits of an output of type `dtype` on an EP without its own limits."""
    return DEFAULTS[of] if is_floating(dtype) else Tolerance()


def _loosest(all_: Sequence[Tolerance]) -> Tolerance:
    """Return the loosest tolerance, limit by limit; a missing limit is the loosest."""
    return Tolerance(
        cosine_min=_pick(min, [t.cosine_min for t in all_]),
        max_abs=_pick(max, [t.max_abs for t in all_]),
        max_rel=_pick(max, [t.max_rel for t in all_]),
        sqnr_min=_pick(min, [t.sqnr_min for t in all_]),
        top_k_min=_pick(min, [t.top_k_min for t in all_]),
        saturates_at=min((t.saturates_at for t in all_ if t.saturates_at), default=None),
    )


def _pick(choose: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return choose(defined) if len(defined) == len(values) else None
