"""Patterns, and what stands in their place: names of outputs, captures, uses."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from epctx.graph.passes.rewrite import Op, RewritePass, Rule, Var
from tests.kit import onnx_text, optimizing

FEEDS = {"x": np.array([1.5, -2.0, 0.0], np.float32)}


def apply(rule: Rule, text: str) -> tuple[ir.Model, dict[str, int]]:
    model = onnx_text.model(text)
    result = RewritePass([rule])(model)
    return model, dict(getattr(result, "changed", {}))


DOUBLE = Rule(
    name="double",
    pattern=Op("Add", Var("x"), Var("x")),
    replace=lambda match: match.op("Mul", [match["x"], match.constant(ir.tensor(np.float32(2)))]),
)


def test_new_nodes_have_types_and_names_and_stand_before_their_users() -> None:
    text = "g (float[3] x) => (float[3] y) { [n] a = Add(x, x) [m] y = Add(a, a) }"
    model, changed = apply(DOUBLE, text)
    assert changed == {"double": 2}
    first, second = model.graph
    assert (first.name, second.name) == ("n/Mul", "m/Mul")
    assert first.outputs[0].dtype == ir.DataType.FLOAT
    assert first.outputs[0].shape == ir.Shape([3])
    assert second.outputs[0].name == "y"
    (y,) = optimizing.run(ir.serde.serialize_model(model).SerializeToString(), FEEDS)
    np.testing.assert_array_equal(y, FEEDS["x"] * 4)


def test_a_node_of_which_another_output_is_used_stays() -> None:
    rule = Rule(name="split", pattern=Op("Split", Var("x")), replace=lambda match: match["x"])
    text = (
        "g (float[4] x) => (float[2] y, float[2] z)"
        " { a, b = Split<num_outputs = 2>(x) y = Neg(a) z = Neg(b) }"
    )
    assert apply(rule, text)[1] == {}


SKIP = Rule(name="skip", pattern=Op("Neg", Var("x")), replace=lambda match: match["x"])


def test_an_output_takes_the_place_of_a_node_and_keeps_its_name() -> None:
    model, _ = apply(SKIP, "g (float[3] x) => (float[3] y) { a = Relu(x) b = Abs(a) y = Neg(b) }")
    assert [node.op_type for node in model.graph] == ["Relu", "Abs"]
    assert model.graph.outputs[0].producer() is model.graph[1]
    assert model.graph.outputs[0].name == "y"


def test_a_value_of_an_outer_graph_does_not_become_the_output_of_an_inner_one() -> None:
    text = (
        "g (bool c, float[3] x) => (float[3] y) { o = Relu(x) y = If(c) <"
        " then_branch = t () => (float[3] u) { u = Neg(o) },"
        " else_branch = e () => (float[3] v) { w = Abs(o) v = Neg(w) }> }"
    )
    model, changed = apply(SKIP, text)
    assert changed == {"skip": 2}
    then, other = model.graph.subgraphs()
    assert [node.op_type for node in then] == ["Identity"]
    assert [node.op_type for node in other] == ["Abs"]
    data = ir.serde.serialize_model(model).SerializeToString()
    (y,) = optimizing.run(data, {"c": np.array(True), **FEEDS})
    np.testing.assert_array_equal(y, np.maximum(FEEDS["x"], 0))
