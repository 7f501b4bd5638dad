"""Models of which ONNX Runtime computes other numbers where it may not prepack their weights.

Prepacking copies weights into a kernel's own layout. It changes no number, but of the kernels here:
`MatMulNBits` with `accuracy_level` 4, as onnxruntime-genai's builder writes it, multiplies in 8-bit
integers what it prepacked, and in float32 what it did not: 0.05 of the largest output apart
(onnxruntime 1.31.1). A MatMul of a weight that is dequantized in blocks becomes one in a session.
A stock session prepacks.
"""

from __future__ import annotations

from typing import Final

import onnx

from epctx.graph.serde import protos

_DEPENDS: Final = frozenset({"MatMulNBits"})


def matters(model: onnx.ModelProto) -> bool:
    """Whether a node, in a body or a function too, gives other numbers without it."""
    return any(node.op_type in _DEPENDS for node in protos.nodes(model)) or in_blocks(model)


def in_blocks(model: onnx.ModelProto) -> bool:
    """Whether something is dequantized in blocks: sessions that optimize make MatMulNBits of it."""
    return any(
        node.op_type == "DequantizeLinear"
        and any(each.name == "block_size" and each.i for each in node.attribute)
        for node in protos.nodes(model)
    )
