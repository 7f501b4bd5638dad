"""Which models compute other numbers where their weights are not prepacked; ONNX Runtime judges."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from epctx.graph import prepacking
from epctx.graph.inputs import Array
from epctx.manifest import ModelSource
from epctx.verification.numbers import sessions, unoptimized


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
    assert prepacking.in_blocks(model) and prepacking.matters(model)
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
    assert prepacking.matters(model)
    inner = helper.make_graph(list(model.graph.node), "b", [], list(model.graph.output))
    branch = helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner)
    del model.graph.node[:]
    model.graph.node.append(branch)
    assert prepacking.matters(model)
    model.graph.node[0].CopyFrom(helper.make_node("MatMul", ["x", "w"], ["y"]))
    assert not prepacking.matters(model)
