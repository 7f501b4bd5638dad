"""How large a fault's effect really is: by the ONNX reference evaluator in float64, not by epctx.

ONNX Runtime has no double kernels for convolutions and recurrent layers; `onnx.reference` computes
whatever it is given, so that a model whose weights and inputs are float64 is computed in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

MASKED = 5000.0
"""Magnitudes from here on are masks, in the models of `architectures`: nothing else comes near."""


@dataclass(frozen=True)
class Effect:
    """Of a fault, on the worst output and input set, masked elements apart.

    Attributes:
        relative: largest difference over the largest magnitude.
        cosine: cosine similarity.
        broken: a mask is at another place, or a value is not finite.
    """

    relative: float
    cosine: float
    broken: bool = False

    def beyond(self, *, max_rel: float, cosine_min: float) -> bool:
        """Whether no right model could have it."""
        return self.broken or self.relative > max_rel or self.cosine < cosine_min


def run(
    model: onnx.ModelProto, inputs: Sequence[Mapping[str, np.ndarray]]
) -> list[list[np.ndarray]]:
    """What a model gives, in float64 wherever it is float32 otherwise."""
    evaluator = ReferenceEvaluator(_double(model))
    return [
        [np.asarray(value) for value in evaluator.run(None, _doubled(given))] for given in inputs
    ]


def effect(right: Sequence[Sequence[np.ndarray]], found: Sequence[Sequence[np.ndarray]]) -> Effect:
    """The worst of all outputs and input sets."""
    effects = [
        _effect(x.astype(np.float64).ravel(), y.astype(np.float64).ravel())
        for each, other in zip(right, found, strict=True)
        for x, y in zip(each, other, strict=True)
    ]
    return Effect(
        relative=max(each.relative for each in effects),
        cosine=min(each.cosine for each in effects),
        broken=any(each.broken for each in effects),
    )


def _effect(x: np.ndarray, y: np.ndarray) -> Effect:
    if x.shape != y.shape:
        return Effect(relative=np.inf, cosine=-1.0, broken=True)
    masked = np.abs(x) >= MASKED
    broken = bool((masked != (np.abs(y) >= MASKED)).any()) or not np.isfinite(y).all()
    x, y = x[~masked], np.nan_to_num(y[~masked])
    norms = float(np.linalg.norm(x) * np.linalg.norm(y))
    cosine = float(x @ y) / norms if norms else 0.0
    return Effect(float(np.abs(x - y).max() / np.abs(x).max()), cosine, broken)


def _doubled(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value.astype(np.float64) for name, value in given.items()}


def _double(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    del made.graph.value_info[:]
    for node in made.graph.node:
        if node.op_type == "Constant":
            value = helper.get_node_attr_value(node, "value")
            assert value.data_type != TensorProto.FLOAT, "weights are initializers"
    return made
