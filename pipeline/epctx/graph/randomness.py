"""Models that compute other values each time they are run: they draw random numbers."""

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
"""Ops that draw where an input, `training_mode`, says so."""


def may_draw(model: onnx.ModelProto) -> bool:
    """Whether a node, in a body or a function too, may draw random numbers.

    A `seed` makes no difference: ONNX Runtime's generators go on from one run of a session to the
    next, so that two runs differ (measured on onnxruntime 1.31.1).
    """
    return any(draws(node.op_type, len(node.input)) for node in protos.nodes(model))


def draws(op_type: str, inputs: int) -> bool:
    """Return whether a node of this op with this many inputs may draw random numbers."""
    # A Dropout of inference has no input that says otherwise.
    return op_type in _DRAWS or (op_type in _IN_TRAINING and inputs > 2)
