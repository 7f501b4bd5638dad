"""A norm as the Qualcomm NPU computes it right when it is quantized.

torch (dynamo) writes RMSNorm as `x * Reciprocal(Sqrt(..))`, times a weight. Of that QNN 2.7.0 gets
two things wrong, silently, with 8 and 16 bits: a quantized Reciprocal (of 0.0201 it makes 1.045,
not 49.8), and the norm that it finds itself where the weight comes second (a Llama of 134 M at
sequence 1: cosine 0.40 to the quantized model; 0.9993 with the weight first).
"""

from __future__ import annotations

from collections import Counter

import onnx


def rewrite(model: onnx.ModelProto) -> bool:
    """Make `Mul(x, Reciprocal(s))` of the main graph `Div(x, s)`, where nothing else uses the
    reciprocal, and let the weight that it is multiplied with come first; whether there was one.
    """
    graph = model.graph
    uses = Counter(name for node in graph.node for name in node.input)
    uses.update(value.name for value in graph.output)
    makers = {node.output[0]: node for node in graph.node if node.op_type == "Reciprocal"}
    gone: list[onnx.NodeProto] = []
    norms: set[str] = set()
    for node in graph.node:
        which = next((i for i, n in enumerate(node.input) if n in makers and uses[n] == 1), None)
        if node.op_type != "Mul" or which is None:
            continue
        reciprocal = makers[node.input[which]]
        node.op_type, other = "Div", node.input[1 - which]
        node.input[:] = [other, reciprocal.input[0]]
        norms.add(node.output[0])
        gone.append(reciprocal)
    for node in gone:
        graph.node.remove(node)
    weights = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Mul" and node.input[0] in norms and node.input[1] in weights:
            node.input[:] = [node.input[1], node.input[0]]
    return bool(gone)
