"""The effect of a fault in a model: by the ONNX reference evaluator in float64, not by epctx.

ONNX Runtime has no double kernels for convolutions and recurrent layers; `onnx.reference` computes
whatever it is given, so that a model whose weights and inputs are float64 is computed in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.mutation import task
from tests.mutation.task import Effect, Task


def run(
    model: onnx.ModelProto, inputs: Sequence[Mapping[str, np.ndarray]]
) -> list[list[np.ndarray]]:
    """What a model gives, in float64 wherever it is float32 otherwise."""
    evaluator = ReferenceEvaluator(_double(model))
    return [
        [np.asarray(value) for value in evaluator.run(None, _doubled(given))] for given in inputs
    ]


def effect(
    measures: Sequence[Task],
    right: Sequence[Sequence[np.ndarray]],
    found: Sequence[Sequence[np.ndarray]],
) -> Effect:
    """The worst effect of all outputs, each measured by its own task."""
    effects = [
        task.effect(measure, -1, 0, [{"": x[i]} for x in right], [{"": y[i]} for y in found])
        for i, measure in enumerate(measures)
    ]
    return max(effects, key=lambda each: each.task)


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
