"""Outputs that hold probabilities: an error of little is none, however small they are."""

from __future__ import annotations

from typing import Final

import onnx

from epctx.graph.prepare import functions
from epctx.graph.serde import protos

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
"""Move, select or average values: of one probability among their inputs they make others."""
_PRODUCTS: Final = frozenset({"Min", "Mul"})
"""Need probabilities only: a Mul of a Sigmoid and its own input is an activation."""


def outputs(model: onnx.ModelProto) -> frozenset[str]:
    """Return the names of the outputs that a Sigmoid or a Softmax ends in, if only in parts.

    Raises:
        ModelError: local functions of the model cannot be inlined.
    """
    model = functions.inlined(model, where=f"graph {model.graph.name}")
    found = _values(model.graph, frozenset())
    return frozenset(info.name for info in model.graph.output if info.name in found)


def _values(graph: onnx.GraphProto, outer: frozenset[str]) -> frozenset[str]:
    """Return the names of a graph's probabilities, and of those around it."""
    found = set(outer)
    for node in graph.node:
        given = [name in found for name in node.input if name]
        if (
            node.op_type in _MAKE
            or (node.op_type in _KEEP and any(given))
            or (node.op_type in _PRODUCTS and given and all(given))
        ):
            found.update(node.output)
        for body in protos.subgraphs(node) if node.op_type == "If" else ():
            inner = _values(body, frozenset(found))
            pairs = zip(body.output, node.output, strict=False)
            found.update(name for info, name in pairs if info.name in inner)
    return frozenset(found)
