"""Precision of each output of a source model: that of the least exact value that it depends on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import onnx

from epctx.errors import ModelError
from epctx.graph import structure
from epctx.graph.prepare import functions
from epctx.graph.serde import protos
from epctx.inference import values
from epctx.providers.base import Precision

Precisions = Precision | Mapping[str, Precision]
"""One precision for all outputs, or one for each, by name."""
_RANKED: Final[tuple[Precision, ...]] = ("quantized", "bfloat16", "float16", "float32", "float64")
"""The least exact first; a rank is a place here."""
_EXACT: Final = len(_RANKED)
"""The rank of what no floating-point number decides."""
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
    """Return the precision of each output, by the nodes that it depends on.

    A node that quantizes makes it quantized; else the types of inputs, weights and casts decide.

    Args:
        fed: precisions of inputs, where their values are less exact than their types.
        also: values of the main graph whose precision is returned, too.

    Raises:
        ModelError: local functions of the model cannot be inlined.
    """
    where = f"graph {model.graph.name}"
    inlined = onnx.ModelProto()
    inlined.CopyFrom(functions.inlined(model, where=where))
    with contextlib.suppress(ModelError):  # not sorted, a pass below does little
        structure.normalize(inlined, where=where)
    ranks = {name: _RANKED.index(of) for name, of in (fed or {}).items()}
    while (found := _ranks(inlined.graph, ranks)) != ranks:  # nodes may come before their inputs
        ranks = found
    names = [*(info.name for info in model.graph.output), *also]
    return {name: (*_RANKED, "float32")[ranks.get(name, _EXACT)] for name in names}


def of_output(output: str, of: Precisions) -> Precision:
    """Return the precision of an output, or of the sequence or map that `output` is a part of."""
    if isinstance(of, str):
        return of
    wholes = (name for name in of if values.suffix(output, name) is not None)
    return of[output] if output in of else of.get(next(wholes, ""), "float32")


def _ranks(graph: onnx.GraphProto, known: Mapping[str, int]) -> dict[str, int]:
    """Return the ranks of a graph's values, and those that are known of values around it."""
    types = {i.name: i.type.tensor_type.elem_type for i in (*graph.output, *graph.input)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    own = {name: _OF_TYPES.get(kind, _EXACT) for name, kind in types.items()}
    found = {**known, **{name: min(rank, known.get(name, rank)) for name, rank in own.items()}}
    for node in graph.node:
        rank = min((*_own(node), *(found.get(name, _EXACT) for name in node.input)), default=_EXACT)
        ranks = [_EXACT if node.op_type in ("Shape", "Size") else rank] * len(node.output)
        for body in protos.subgraphs(node):
            inner = _ranks(body, {**found, **{info.name: rank for info in body.input}})
            ends = [inner.get(info.name, _EXACT) for info in body.output]
            if node.op_type != "If":  # a loop feeds all that its body makes to the next turn
                ends = [min(ends, default=_EXACT)] * len(ranks)
            ranks = list(map(min, ranks, ends))
        made = zip(node.output, ranks, strict=False)
        found.update((name, min(rank, own.get(name, _EXACT))) for name, rank in made if name)
    return found


def _own(node: onnx.NodeProto) -> Iterator[int]:
    """The ranks that a node has by itself: it quantizes, casts, or is a constant."""
    op = node.op_type
    if "QuantizeLinear" in op or op.startswith("QLinear") or op.endswith("Integer"):
        yield 0
    kinds = [a.i for a in node.attribute if a.name in ("dtype", "to")]
    kinds += [t.data_type for a in node.attribute for t in protos.tensors_of(a)]
    yield from (_OF_TYPES.get(kind, _EXACT) for kind in kinds)
