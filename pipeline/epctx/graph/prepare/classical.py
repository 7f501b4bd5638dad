"""Operators of other domains whose outputs onnx infers nothing of.

While onnx infers, a Cast or an Identity stands in the place of each, which makes the same type and
shape as the kernels of onnxruntime 1.31.1. They are operators of classical machine learning, with
which pipelines of scikit-learn begin, and ONNX Runtime's own QuantizeLinear and DequantizeLinear,
which its quantizer writes for types that ONNX's have from a later opset on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import onnx

from epctx.graph.serde import protos

_SAME: Final = -1
_OPSET: Final = 13
"""Of ONNX's own domain, in a model that has no operator of it."""
_CAST_BY_NUMBER: Final = 6
"""The opset from which on Cast has the number of a type."""

StandIns = Sequence[tuple[int, int, onnx.NodeProto]]
"""Place of the graph, place of the node in it, and the node that belongs there."""


def stand_in(model: onnx.ModelProto) -> StandIns:
    """Replace such nodes; what was in their places."""
    versions = {each.domain: each.version for each in model.opset_import}
    if versions.get("", _OPSET) < _CAST_BY_NUMBER:
        return ()
    types = {t.name: t.data_type for graph in protos.graphs(model) for t in graph.initializer}
    replaced = []
    for place, graph in enumerate(protos.graphs(model)):
        for index, node in enumerate(graph.node):
            kind = _output_type(node, types)
            if kind is not None:
                own = onnx.NodeProto()
                own.CopyFrom(node)
                replaced.append((place, index, own))
                _become(node, kind)
    if replaced and "" not in versions:
        model.opset_import.add(domain="", version=_OPSET)
    return replaced


def put_back(model: onnx.ModelProto, replaced: StandIns, original: onnx.ModelProto) -> None:
    """Undo `stand_in` in what was inferred from its model, which was `original` before."""
    graphs = list(protos.graphs(model))
    for place, index, node in replaced:
        graphs[place].node[index].CopyFrom(node)
    domains = {each.domain for each in original.opset_import}
    if replaced and "" not in domains:
        kept = [each for each in model.opset_import if each.domain]
        del model.opset_import[:]
        model.opset_import.extend(kept)


def _output_type(node: onnx.NodeProto, types: Mapping[str, int]) -> int | None:
    """Return the element type of an output that has its input's shape; None for other operators.

    Where ONNX Runtime 1.31.1 knows that of a Normalizer by L2, it computes in place, and wrong.
    """
    match node.domain, node.op_type:
        case "ai.onnx.ml", "Imputer":
            return _SAME
        case "ai.onnx.ml", "Scaler":
            return onnx.TensorProto.FLOAT
        case "ai.onnx.ml", "Normalizer":
            is_l2 = any(each.name == "norm" and each.s == b"L2" for each in node.attribute)
            return None if is_l2 else onnx.TensorProto.FLOAT
        case "com.microsoft", "DequantizeLinear":
            return types.get(node.input[1])
        case "com.microsoft", "QuantizeLinear":
            return types.get(node.input[2]) if len(node.input) > 2 else onnx.TensorProto.UINT8
    return None


def _become(node: onnx.NodeProto, kind: int) -> None:
    node.domain, node.op_type = "", "Identity" if kind == _SAME else "Cast"
    del node.attribute[:], node.input[1:]
    if kind != _SAME:
        node.attribute.add(name="to", type=onnx.AttributeProto.INT, i=kind)
