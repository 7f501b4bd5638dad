"""Models whose numbers differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.graph import numerics
from epctx.graph.inputs import Array
from epctx.manifest import ModelSource
from epctx.verification.numbers import sessions, unoptimized

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
    assert numerics.may_draw(made) is draws
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": np.linspace(-1, 1, 32, dtype=np.float32)[None]}
    one, two = (session.run(None, feeds)[0] for _ in range(2))
    assert np.array_equal(one, two) is not draws


def test_a_dropout_that_is_told_not_to_train_is_run_twice_and_found_the_same() -> None:
    assert numerics.may_draw(model(node("Dropout", "x", "half", "no")))


def quantized(level: int) -> onnx.ModelProto:
    """A product with a weight of 4 bits."""
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 256, (64, 2, 16)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, (64, 2)).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft",
        K=64, N=64, bits=4, block_size=32, accuracy_level=level,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 64])],
        [numpy_helper.from_array(packed, "w"), numpy_helper.from_array(scales, "s")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_a_source_is_run_as_a_stock_session_runs_it(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(quantized(4), path)
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    stock = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    other = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert np.abs(other.run(None, {"x": x})[0] - stock).max() > 1e-3  # why it matters
    ran = sessions.open_source(ModelSource(name="m", path=path))
    assert np.array_equal(sessions.run_source(ran, {"x": x})["y"], stock)


def test_weights_that_are_dequantized_in_blocks(tmp_path: Path) -> None:
    """A session that optimizes makes MatMulNBits of them: there are two answers, both meant."""
    rng = np.random.default_rng(0)
    weight = helper.make_tensor("w", TensorProto.INT4, [64, 64], rng.integers(-8, 8, 4096).tolist())
    scales = numpy_helper.from_array(rng.uniform(0.01, 0.1, (2, 64)).astype(np.float32), "s")
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    x, y, n = (
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("x", TensorProto.FLOAT, [3, 64]),
            ("y", TensorProto.FLOAT, [3, 64]),
            ("n", TensorProto.INT64, [2]),
        )
    )
    graph = helper.make_graph(nodes, "g", [x], [y, n], [weight, scales])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert numerics.dequantizes_in_blocks(model) and numerics.depends_on_prepacking(model)
    assert not unoptimized.folds(model)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    feeds: dict[str, Array] = {"x": rng.standard_normal((3, 64)).astype(np.float32)}
    stock = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(["y"], feeds)[0]
    ran = sessions.open_source(ModelSource(name="m", path=path))
    assert np.array_equal(sessions.run_source(ran, feeds)["y"], stock)
    kernels = sessions.open_source(
        ModelSource(name="m", path=path), level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    assert np.abs(sessions.run_source(kernels, feeds)["y"] - stock).max() > 1e-3


def test_it_matters_in_bodies_too_and_not_to_other_products() -> None:
    model = quantized(4)
    assert numerics.depends_on_prepacking(model)
    inner = helper.make_graph(list(model.graph.node), "b", [], list(model.graph.output))
    branch = helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner)
    del model.graph.node[:]
    model.graph.node.append(branch)
    assert numerics.depends_on_prepacking(model)
    model.graph.node[0].CopyFrom(helper.make_node("MatMul", ["x", "w"], ["y"]))
    assert not numerics.depends_on_prepacking(model)
