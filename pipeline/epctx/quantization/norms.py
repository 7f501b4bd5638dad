"""A norm as the Qualcomm NPU computes it right when it is quantized.

torch (dynamo) writes RMSNorm as `x * Reciprocal(Sqrt(..))`. A quantized Reciprocal is wrong, with 8
and 16 bits, also where only what is around it is quantized: of 0.0201 QNN 2.7.0 makes 1.045, not
49.8. `x / Sqrt(..)` is right, with the same ranges.
"""

from __future__ import annotations

from collections import Counter

import onnx

from epctx.graph.serde import protos


def divide(model: onnx.ModelProto) -> bool:
    """Make `Mul(x, Reciprocal(s))` of the main graph `Div(x, s)`, where nothing else uses the
    reciprocal; whether there was one.
    """
    graph = model.graph
    uses = Counter(name for node in protos.nodes(model) for name in node.input)
    uses.update(value.name for value in graph.output)
    makers = {node.output[0]: node for node in graph.node if node.op_type == "Reciprocal"}
    gone: list[onnx.NodeProto] = []
    for node in graph.node:
        which = next((i for i, n in enumerate(node.input) if n in makers and uses[n] == 1), None)
        if node.op_type != "Mul" or which is None:
            continue
        reciprocal = makers[node.input[which]]
        node.op_type, other = "Div", node.input[1 - which]
        node.input[:] = [other, reciprocal.input[0]]
        gone.append(reciprocal)
    for node in gone:
        graph.node.remove(node)
    return bool(gone)
