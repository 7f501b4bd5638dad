"""Nodes of one EP in a session of its own: what each reads, and that it runs alone."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from epctx.inference.pipeline import apart_runners
from epctx.inference.split import SegmentBuilder, segment


def chain() -> onnx.ModelProto:
    """Neg, Exp and Neg again, plain nodes in the place of contexts; the Exp is not of the part."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("Sum", ["a", "b", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [2])],
        [value("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "w")],
        value_info=[value("a", TensorProto.FLOAT, [2]), value("b", TensorProto.FLOAT, [2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def part_of(model: onnx.ModelProto, places: list[int]) -> onnx.ModelProto:
    return SegmentBuilder(model).build(segment(model.graph, places))


def test_each_node_reads_what_those_before_it_in_the_session_need_too() -> None:
    part = part_of(chain(), [0, 2])
    assert [value.name for value in part.graph.input] == ["x", "b"]
    assert [value.name for value in part.graph.output] == ["a", "y"]
    session = ort.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])
    first, second = apart_runners(part, session)
    assert (first.reads, first.makes) == (("x",), ("a",))
    assert (second.reads, second.makes) == (("b", "x"), ("y",))
    x = np.array([1, -2], np.float32)
    values = {"x": ort.OrtValue.ortvalue_from_numpy(x)}
    (a,) = first.run(values, None)  # `b` is not known yet
    np.testing.assert_array_equal(a.numpy(), -x)
    values |= {"a": a, "b": ort.OrtValue.ortvalue_from_numpy(np.exp(-x))}
    (y,) = second.run(values, None)
    np.testing.assert_allclose(y.numpy(), -x + np.exp(-x) + 1)


def test_the_callers_run_options_stay_as_they_are() -> None:
    part = part_of(chain(), [0])
    session = ort.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])
    (runner,) = apart_runners(part, session)
    options = ort.RunOptions()
    runner.run({"x": ort.OrtValue.ortvalue_from_numpy(np.ones(2, np.float32))}, options)
    assert options.only_execute_path_to_fetches is False
