"""What a graph says of its inputs' values, held against what ONNX Runtime takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from epctx.graph import input_ranges
from epctx.graph.input_ranges import Range
from epctx.graph.inputs import specs
from epctx.runtime import feeds

INT64, INT32, FLOAT = TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT
Inputs = list[tuple[str, int, list[int]]]


def model(inputs: Inputs, *nodes: onnx.NodeProto, rows: int = 9) -> onnx.ModelProto:
    """The last node's output is the model's; `t` is a table of these rows, `s` a shape."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [onnx.ValueInfoProto(name=nodes[-1].output[0])],
        [
            helper.make_tensor("t", FLOAT, [rows, 2], [0.5] * rows * 2),
            helper.make_tensor("s", INT64, [1], [-1]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def node(op: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), ["y"], **attributes)


INDEX: Inputs = [("i", INT64, [4])]
CASES: dict[str, tuple[onnx.ModelProto, dict[str, Range]]] = {
    "an index": (model(INDEX, node("Gather", "t", "i")), {"i": (0, 8)}),
    "of the last axis": (model(INDEX, node("Gather", "t", "i", axis=-1)), {"i": (0, 1)}),
    "an index by another way": (
        model(
            [("i", INT32, [2, 2])],
            helper.make_node("Reshape", ["i", "s"], ["flat"]),
            helper.make_node("Cast", ["flat"], ["wide"], to=INT64),
            node("Gather", "t", "wide"),
        ),
        {"i": (0, 8)},
    ),
    "an index of what is fed": (
        model([("d", FLOAT, [5, 2]), ("i", INT64, [4])], node("Gather", "d", "i")),
        {"i": (0, 4)},
    ),
    "an index of a constant": (
        model(
            INDEX,
            helper.make_node(
                "Constant", [], ["c"], value=helper.make_tensor("c", FLOAT, [3], [1, 2, 3])
            ),
            node("Gather", "c", "i"),
        ),
        {"i": (0, 2)},
    ),
    "elements": (
        model([("i", INT64, [4, 2])], node("GatherElements", "t", "i")),
        {"i": (0, 8)},
    ),
    "tuples": (model([("i", INT64, [4, 2])], node("GatherND", "t", "i")), {"i": (0, 1)}),
    "scattered": (
        model([("i", INT64, [3, 1]), ("u", FLOAT, [3, 2])], node("ScatterND", "t", "i", "u")),
        {"i": (0, 1)},
    ),
    "a divisor": (
        model([("a", INT64, [4]), ("b", INT64, [4])], node("Div", "a", "b")),
        {"b": (1, 4)},
    ),
    "a step": (
        model(
            [("a", INT64, []), ("b", INT64, []), ("c", INT64, [])], node("Range", "a", "b", "c")
        ),
        {"c": (1, 1)},
    ),
    "a count": (
        model([("x", FLOAT, [9]), ("k", INT64, [1])],
              helper.make_node("TopK", ["x", "k"], ["v", "n"]),
              node("Identity", "v")),
        {"k": (1, 1)},
    ),
    "a logarithm": (model([("x", FLOAT, [9])], node("Log", "x")), {"x": (2**-10, 4)}),
    "two consumers": (
        model(
            [("i", INT64, [4])],
            helper.make_node("Gather", ["t", "i"], ["a"]),
            node("Gather", "t", "i", axis=1),
        ),
        {"i": (0, 1)},
    ),
    "a mask": (
        model(
            [("m", TensorProto.BOOL, [2]), ("x", FLOAT, [2])], node("Where", "m", "x", "x")
        ),
        {},
    ),
    "a float divisor": (
        model([("a", FLOAT, [4]), ("b", FLOAT, [4])], node("Div", "a", "b")),
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_model_runs_on_what_is_generated(name: str) -> None:
    made, ranges = CASES[name]
    assert input_ranges.ranges(made.graph) == ranges
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for index in range(5):
        given = feeds.generate(specs(made), seed=0, index=index)
        (out,) = session.run(None, given)
        assert np.isfinite(np.asarray(out, np.float64)).all()


def test_what_contradicts_itself_is_not_narrowed() -> None:
    made = model(
        [("x", FLOAT, [2])],
        helper.make_node("Asin", ["x"], ["a"]),
        helper.make_node("Acosh", ["x"], ["b"]),
        node("Add", "a", "b"),
    )
    assert input_ranges.ranges(made.graph) == {"x": (1, 1)}
    both = model([("i", INT64, [1])], node("Gather", "t", "i"), rows=1)
    both.graph.node.append(helper.make_node("Div", ["i", "i"], ["z"]))
    assert input_ranges.ranges(both.graph) == {"i": (0, 0)}


def test_a_graph_that_leaves_everything_open_says_nothing() -> None:
    made = model([("i", INT64, [1])], node("Gather", "nowhere", "i"))
    made.graph.node.append(helper.make_node("GatherND", ["i"], ["z"]))
    made.graph.node.append(helper.make_node("Identity", [], ["e"]))
    assert input_ranges.ranges(made.graph) == {}
