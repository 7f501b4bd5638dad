"""Which models draw random numbers, held against two runs of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from epctx.graph import randomness

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
X = helper.make_tensor_value_info("x", FLOAT, [1, 32])
Y = helper.make_tensor_value_info("y", FLOAT, None)


def model(*nodes: onnx.NodeProto, functions: Sequence[onnx.FunctionProto] = ()) -> onnx.ModelProto:
    scalars = [
        helper.make_tensor("half", FLOAT, [], [0.5]),
        helper.make_tensor("yes", BOOL, [], [True]),
        helper.make_tensor("no", BOOL, [], [False]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    graph = helper.make_graph(nodes, "g", [X], [Y], scalars)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=list(functions))


def node(op: str, *inputs: str, to: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [to], **attributes)


def branch(name: str, op: str) -> onnx.GraphProto:
    body = helper.make_node(op, ["x"], [name])
    return helper.make_graph([body], name, [], [helper.make_tensor_value_info(name, FLOAT, None)])


FUNCTION = helper.make_function(
    "own", "Noise", ["a"], ["b"], [helper.make_node("RandomNormalLike", ["a"], ["b"])],
    [helper.make_opsetid("", 17)],
)  # fmt: skip
CASES = {
    "RandomNormalLike": (model(node("RandomNormalLike", "x")), True),
    "with a seed": (model(node("RandomNormalLike", "x", seed=3.0)), True),
    "RandomUniform": (model(node("RandomUniform", shape=[32])), True),
    "RandomNormal": (model(node("RandomNormal", shape=[32])), True),
    "RandomUniformLike": (model(node("RandomUniformLike", "x")), True),
    "Multinomial": (
        model(node("Multinomial", "x", to="m", sample_size=32), node("Cast", "m", to="y")), True,
    ),
    "Bernoulli": (model(node("Sigmoid", "x", to="p"), node("Bernoulli", "p")), True),
    "Dropout in training": (model(node("Dropout", "x", "half", "yes")), True),
    "Dropout of inference": (model(node("Dropout", "x")), False),
    "Dropout with a ratio": (model(node("Dropout", "x", "half")), False),
    "in a branch": (
        model(node("If", "yes", then_branch=branch("a", "RandomNormalLike"),
                   else_branch=branch("b", "Relu"))), True,
    ),
    "in a function": (model(node("Noise", "x", domain="own"), functions=(FUNCTION,)), True),
    "nothing": (model(node("Relu", "x")), False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_may_draw_gives_another_result_each_time(name: str) -> None:
    made, draws = CASES[name]
    for each in made.graph.node:
        if each.op_type == "Cast":
            each.attribute.append(helper.make_attribute("to", FLOAT))
    assert randomness.may_draw(made) is draws
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": np.linspace(-1, 1, 32, dtype=np.float32)[None]}
    one, two = (session.run(None, feeds)[0] for _ in range(2))
    assert np.array_equal(one, two) is not draws


def test_a_dropout_that_is_told_not_to_train_is_run_twice_and_found_the_same() -> None:
    assert randomness.may_draw(model(node("Dropout", "x", "half", "no")))
