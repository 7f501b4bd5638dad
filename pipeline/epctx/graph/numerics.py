"""Models whose numbers differ: from run to run, or with the options of a session.

A model that draws random numbers computes other values each time.

Prepacking copies weights into a kernel's own layout, and a stock session prepacks. It changes
numbers in one kernel only: `MatMulNBits` with `accuracy_level` 4, as onnxruntime-genai's builder
writes it, multiplies prepacked weights in 8-bit integers, and others in float32. The results differ
by 0.05 of the largest output (onnxruntime 1.31.1). A MatMul of a weight that is dequantized in
blocks becomes such a node in a session.
"""

from __future__ import annotations

from typing import Final

import onnx

from epctx.graph.serde import protos

_DRAWS: Final = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Sampling",
    }
)
_IN_TRAINING: Final = frozenset(
    {"BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "Dropout", "TrainableDropout"}
)
"""Ops that draw random numbers if their input `training_mode` is true."""


def may_draw(model: onnx.ModelProto) -> bool:
    """Tell whether a node, in a body or a function too, may draw random numbers.

    A `seed` makes no difference: ONNX Runtime's generators continue from one run of a session to
    the next, so two runs differ (measured on onnxruntime 1.31.1).
    """
    return any(draws(node.op_type, len(node.input)) for node in protos.nodes(model))


def draws(op_type: str, inputs: int) -> bool:
    """Tell whether a node of this op with this many inputs may draw random numbers."""
    # A Dropout for inference has no input `training_mode`.
    return op_type in _DRAWS or (op_type in _IN_TRAINING and inputs > 2)


_DEPENDS: Final = frozenset({"MatMulNBits"})


def depends_on_prepacking(model: onnx.ModelProto) -> bool:
    """Tell whether a node, in a body or a function too, gives other numbers without prepacking."""
    return any(node.op_type in _DEPENDS for node in protos.nodes(model)) or dequantizes_in_blocks(
        model
    )


def dequantizes_in_blocks(model: onnx.ModelProto) -> bool:
    """Tell whether a weight is dequantized in blocks: optimizing sessions make it a MatMulNBits."""
    return any(
        node.op_type == "DequantizeLinear"
        and any(each.name == "block_size" and each.i for each in node.attribute)
        for node in protos.nodes(model)
    )
