"""EPContext nodes of a file against those that generating sessions ran: one thing altered each."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from onnx import TensorProto, helper

from epctx.providers.base import Boundary, Port
from epctx.verification.numbers import boundaries

RIGHT = Boundary(
    node="main_0",
    inputs=(Port(name="a", type="tensor(float)", shape=(1, 4)), Port(name="b"), Port(name="w")),
    outputs=(Port(name="y", type="tensor(float)", shape=(None, 4)),),
)


def file() -> onnx.ModelProto:
    """A file whose one EPContext node is RIGHT."""
    node = helper.make_node(
        "EPContext", ["a", "b", "w"], ["y"], name="main_0", domain="com.microsoft"
    )
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["y"], ["z"])],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "ab"],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0])],
        value_info=[helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
    )
    return helper.make_model(graph)


def swap(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[:] = ["b", "a", "w"]


def rename(model: onnx.ModelProto) -> None:
    model.graph.node[0].output[:] = ["y_1"]
    model.graph.node[1].input[:] = ["y_1"]


def retype(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16


def reshape(model: onnx.ModelProto) -> None:
    model.graph.value_info[0].type.tensor_type.shape.dim[1].dim_value = 5


def flatten(model: onnx.ModelProto) -> None:
    del model.graph.input[0].type.tensor_type.shape.dim[0]


def call_otherwise(model: onnx.ModelProto) -> None:
    model.graph.node[0].name = "main_1"


ALTERED: dict[str, tuple[Callable[[onnx.ModelProto], None], list[str]]] = {
    "order": (swap, ["node 'main_0': inputs are b, a, w, not a, b, w"]),
    "a name": (rename, ["node 'main_0': outputs are y_1, not y"]),
    "a type": (retype, ["'a' is tensor(float16), not tensor(float)"]),
    "a size": (reshape, ["'y' has the shape ['n', 5], not [None, 4]"]),
    "a rank": (flatten, ["'a' has the shape [4], not [1, 4]"]),
    "a node": (call_otherwise, ["no session made its node 'main_1'", "it lacks the node 'main_0'"]),
}


def test_a_file_as_it_was_made_differs_in_nothing() -> None:
    assert list(boundaries.differences(file(), [RIGHT])) == []


@pytest.mark.parametrize("what", ALTERED)
def test_what_is_altered_is_told(what: str) -> None:
    alter, told = ALTERED[what]
    model = file()
    alter(model)
    assert list(boundaries.differences(model, [RIGHT])) == told


def test_values_under_other_names_are_found_by_those_in_the_compiled_graph() -> None:
    model = file()
    model.graph.node[0].input[0] = model.graph.input[0].name = "p_a"
    overrides = helper.make_attribute("io_name_overrides", "p_a=a;b=b;w=w;y=y;")
    model.graph.node[0].attribute.append(overrides)
    assert list(boundaries.differences(model, [RIGHT])) == []
    retype(model)
    assert list(boundaries.differences(model, [RIGHT])) == ALTERED["a type"][1]
