"""Limits, names and order of a graph."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from epctx.errors import ModelError
from epctx.graph import structure
from tests.kit import onnx_text

_model = partial(onnx_text.proto, opsets='"":17, "l":1')


def _refused(model: onnx.ModelProto) -> str:
    with pytest.raises(ModelError) as caught:
        structure.normalize(model, where="m.onnx")
    message = str(caught.value)
    assert message.startswith("m.onnx: ")
    assert "\n  -> " in message
    return message


def _names(model: onnx.ModelProto) -> list[str]:
    return [node.name for node in model.graph.node]


def test_an_unsorted_graph_is_sorted_with_its_order_kept_where_it_is_free() -> None:
    model = _model(
        "g (float[N] x) => (float[N] z, float[N] q) "
        "{ [d] z = Add(t, u) [c] u = Relu(t) [a] q = Relu(x) [b] t = Relu(x) }"
    )
    expected = {node.name: node.SerializeToString() for node in model.graph.node}
    structure.normalize(model, where="m.onnx")
    assert _names(model) == ["a", "b", "c", "d"]
    assert {node.name: node.SerializeToString() for node in model.graph.node} == expected
    onnx.checker.check_model(model)


def test_what_a_subgraph_reads_orders_the_node_around_it() -> None:
    model = _model(
        "g (float[N] x, bool c) => (float[N] z) { "
        "[if] z = If(c) <then_branch = t () => (float[N] o) { o = Relu(y) }, "
        "else_branch = e () => (float[N] p) { p = Relu(x) }> [y] y = Relu(x) }"
    )
    structure.normalize(model, where="m.onnx")
    assert _names(model) == ["y", "if"]


def test_an_unsorted_subgraph_and_function_are_sorted() -> None:
    model = _model(
        "g (float[N] x, bool c) => (float[N] z) { "
        "z = If(c) <then_branch = t () => (float[N] o) { [b] o = Relu(i) [a] i = l.f(x) }, "
        "else_branch = e () => (float[N] p) { p = Relu(x) }> }"
        '<domain: "l", opset_import: ["":17]> f (x) => (y) { [d] y = Relu(t) [c] t = Relu(x) }'
    )
    structure.normalize(model, where="m.onnx")
    body = model.graph.node[0].attribute[0].g
    assert [node.name for node in body.node] == ["a", "b"]
    assert [node.name for node in model.functions[0].node] == ["c", "d"]


def test_a_cycle_is_shown_in_the_direction_of_the_data() -> None:
    message = _refused(
        _model(
            "g (float[N] x) => (float[N] z) "
            "{ [one] a = Add(x, c) [two] b = Relu(a) [three] c = Relu(b) [after] z = Relu(c) }"
        )
    )
    assert "has a cycle" in message
    cycle = message.split("has a cycle: ")[1].splitlines()[0]
    order = [part.split("'")[1] for part in cycle.split(" -> ")]
    assert order[0] == order[-1]
    start = order.index("one")
    assert (order[:-1] + order[:-1])[start : start + 3] == ["one", "two", "three"]


def test_a_node_that_reads_itself_is_a_cycle() -> None:
    message = _refused(_model("g (float[N] x) => (float[N] z) { [self] z = Add(x, z) }"))
    assert "has a cycle: node 'self' (Add)" in message


def test_a_cycle_through_a_subgraph_is_a_cycle() -> None:
    message = _refused(
        _model(
            "g (float[N] x, bool c) => (float[N] z) { "
            "[if] z = If(c) <then_branch = t () => (float[N] o) { o = Relu(y) }, "
            "else_branch = e () => (float[N] p) { p = Relu(x) }> [back] y = Relu(z) }"
        )
    )
    assert "'if' (If)" in message
    assert "'back' (Relu)" in message


def test_a_long_cycle_is_shortened() -> None:
    count = 50
    nodes = [
        helper.make_node("Relu", [f"v{(i - 1) % count}"], [f"v{i}"], name=f"n{i}")
        for i in range(count)
    ]
    output = helper.make_tensor_value_info("v0", 1, None)
    message = _refused(helper.make_model(helper.make_graph(nodes, "g", [], [output])))
    assert f"{count + 1 - 8} more" in message
    assert message.count("->") < 12


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (
            "g (float[N] x) => (float[N] z) { [n] z = Add(x, wieght) }",
            "the graph: node 'n' (Add) reads 'wieght', which nothing makes",
        ),
        (
            "g (float[N] x) => (float[N] z) { z = Add(x, missing) }",
            "the Add node that makes 'z' reads 'missing'",
        ),
        ("g (float[N] x) => (float[N] z) { y = Relu(x) }", "the list of outputs reads 'z'"),
        (
            "g (float[N] x, bool c) => (float[N] z) { [if] z = If(c) "
            "<then_branch = t () => (float[N] o) { [in] o = Relu(nowhere) }, "
            "else_branch = e () => (float[N] p) { p = Relu(x) }> }",
            "node 'in' (Relu) reads 'nowhere'",
        ),
        (
            "g (float[N] x) => (float[N] z) { z = l.f(x) }"
            '<domain: "l", opset_import: ["":17]> f (x) => (y) { y = Relu(outside) }',
            "function l::f: the Relu node that makes 'y' reads 'outside'",
        ),
        (
            "g (float[N] x) => (float[N] z) { z = l.f(x) }"
            '<domain: "l", opset_import: ["":17]> f (x) => (y) { t = Relu(x) }',
            "function l::f: the list of outputs reads 'y'",
        ),
        ("g (float[N] x) => (float[N] z) { [n] z = Relu(x) [n] y = Relu(x) }", "named 'n'"),
        ("g (float[N] x) => (float[N] x) { [n] x = Relu(x) }", "'x' is made twice"),
        (
            "g (float[N] x) => (float[N] z) { [a] z = Relu(x) [b] z = Tanh(x) }",
            "'z' is made twice: by node 'a' (Relu) and node 'b' (Tanh)",
        ),
    ],
)
def test_what_is_broken_is_named(body: str, what: str) -> None:
    assert what in _refused(_model(body))


def test_the_nearest_name_is_shown() -> None:
    model = _model("g (float[N] x) => (float[N] z) { weight = Relu(x) z = Add(x, wieght) }")
    assert "the nearest name is 'weight'" in _refused(model)


def test_a_subgraphs_own_names_are_not_seen_outside() -> None:
    message = _refused(
        _model(
            "g (float[N] x, bool c) => (float[N] z) { "
            "y = If(c) <then_branch = t () => (float[N] o) { o = Relu(x) }, "
            "else_branch = e () => (float[N] p) { p = Relu(x) }> z = Relu(o) }"
        )
    )
    assert "reads 'o', which nothing makes" in message


def test_initializers_are_made_once() -> None:
    model = _model("g (float[N] x) => (float[N] z) { z = Add(x, w) }")
    weight = numpy_helper.from_array(np.zeros(1, np.float32), "w")
    model.graph.initializer.append(weight)
    structure.normalize(model, where="m.onnx")
    model.graph.initializer.append(weight)
    assert "2 initializers are named 'w'" in _refused(model)


MODEL = "g (float[2] x) => (float[2] y) { a = Sum(x, x, x) y = Relu(a) }"


def model() -> onnx.ModelProto:
    return onnx_text.proto(MODEL)


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("MODEL_NODES", "has 2 nodes, more than 1"),
        ("NODE_INPUTS", "has 3 inputs, more than 1"),
    ],
)
def test_more_than_the_limit_is_refused(
    limit: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    structure.require_bounded(model(), where="a.onnx")
    monkeypatch.setenv(f"EPCTX_LIMIT_{limit}", "1")
    with pytest.raises(ModelError, match=says) as error:
        structure.require_bounded(model(), where="a.onnx")
    assert f"raise EPCTX_LIMIT_{limit}, which is 1" in str(error.value.remedy)
