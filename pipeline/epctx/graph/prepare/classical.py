"""Operators of classical machine learning whose outputs onnx infers nothing of.

Pipelines of scikit-learn begin with them, so that nothing would be known of what follows. While
onnx infers, operators of its own that make the same type and shape stand in their places. That the
shape is the input's is what the kernels of onnxruntime 1.31.1 do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import onnx

from epctx.graph.serde import protos

_DOMAIN: Final = "ai.onnx.ml"
_TO_FLOAT: Final = ("Normalizer", "Scaler")
"""They make floats of the input's shape."""
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
    replaced = []
    for place, graph in enumerate(protos.graphs(model)):
        for index, node in enumerate(graph.node):
            if node.domain == _DOMAIN and _keeps_shape(node):
                own = onnx.NodeProto()
                own.CopyFrom(node)
                replaced.append((place, index, own))
                _become(node)
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


def _keeps_shape(node: onnx.NodeProto) -> bool:
    """Whether its output has the shape of its input, and may be known to have it.

    Where ONNX Runtime 1.31.1 knows that of a Normalizer by L2, it computes in place, and wrong.
    """
    if node.op_type == "Normalizer":
        return all(each.name != "norm" or each.s != b"L2" for each in node.attribute)
    return node.op_type in ("Imputer", "Scaler")


def _become(node: onnx.NodeProto) -> None:
    to_float = node.op_type in _TO_FLOAT
    node.domain, node.op_type = "", "Cast" if to_float else "Identity"
    del node.attribute[:]
    if to_float:
        node.attribute.add(name="to", type=onnx.AttributeProto.INT, i=onnx.TensorProto.FLOAT)
