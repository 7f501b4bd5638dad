"""Patterns, and what stands in their place: names of outputs, captures, uses."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from epctx.graph.passes.rewrite import Match, Op, RewritePass, Rule, Var
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


def test_equal_names_are_equal_values() -> None:
    text = "g (float[3] x, float[3] z) => (float[3] y) { a = Add(x, x) y = Add(a, z) }"
    model, changed = apply(DOUBLE, text)
    assert changed == {"double": 1}
    assert [node.op_type for node in model.graph] == ["Mul", "Add"]


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


def test_a_rule_applies_again_to_what_it_made() -> None:
    halve = Rule(
        name="negations",
        pattern=Op("Neg", Op("Neg", Var("x"))),
        replace=lambda match: match["x"],
    )
    chain = " ".join(f"a{i + 1} = Neg(a{i})" for i in range(7)).replace("a0", "x")
    model, changed = apply(halve, f"g (float[3] x) => (float[3] a7) {{ {chain} }}")
    assert changed["negations"] >= 3
    (y,) = optimizing.run(ir.serde.serialize_model(model).SerializeToString(), FEEDS)
    np.testing.assert_array_equal(y, -FEEDS["x"])


def test_a_rule_whose_opset_is_not_there_does_not_apply() -> None:
    rule = Rule(name="later", pattern=Op("Relu", Var("x")), replace=lambda m: m["x"], since=99)
    _, changed = apply(rule, "g (float[3] x) => (float[3] y) { a = Relu(x) y = Neg(a) }")
    assert changed == {}


def test_other_domains_are_other_ops() -> None:
    rule = Rule(name="any", pattern=Op("Relu", Var("x")), replace=lambda m: m["x"])
    model = onnx_text.model(
        "g (float[3] x) => (float[3] y) { a = other.Relu(x) y = Neg(a) }",
        opsets='"" : 21, "other" : 1',
    )
    assert not RewritePass([rule])(model).modified


def test_the_second_output_of_a_node_is_not_its_first() -> None:
    rule = Rule(
        name="split",
        pattern=Op("Neg", Op("Split", Var("x"))),
        replace=lambda match: match["x"],
    )
    text = "g (float[4] x) => (float[2] y) { a, b = Split<num_outputs = 2>(x) y = Neg(b) }"
    assert apply(rule, text)[1] == {}


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


def test_outputs_of_one_value_stay_two_outputs() -> None:
    """onnx_ir's own identity elimination calls both of them `y` (1.1.0)."""
    model, _ = apply(SKIP, "g (float[3] x) => (float[3] a, float[3] y) { a = Relu(x) y = Neg(a) }")
    assert optimizing.names(model.graph.outputs) == ["a", "y"]
    assert [node.op_type for node in model.graph] == ["Relu", "Identity"]


def test_an_input_does_not_become_an_output() -> None:
    model, _ = apply(SKIP, "g (float[3] x) => (float[3] y) { y = Neg(x) }")
    assert [node.op_type for node in model.graph] == ["Identity"]
    assert optimizing.names(model.graph.inputs) == ["x"]


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


def test_what_is_known_of_the_old_value_is_known_of_the_new() -> None:
    model = onnx_text.model("g (float[N] x) => (float[3] y) { a = Relu(x) b = Neg(a) y = Abs(b) }")
    b = model.graph[1].outputs[0]
    b.shape = ir.Shape([3])
    RewritePass([SKIP])(model)
    assert model.graph[0].outputs[0].shape == ir.Shape([3])


def test_a_match_names_nodes_and_values() -> None:
    seen: list[tuple[str | None, str]] = []

    def look(match: Match) -> ir.Value | None:
        seen.append((match["x"].name, match.nodes["inner"].op_type))
        return None

    pattern = Op("Neg", Op(("Relu", "Abs"), Var("x"), name="inner"))
    text = "g (float[3] x) => (float[3] y) { a = Abs(x) b = Neg(a) c = Relu(b) y = Neg(c) }"
    _, changed = apply(Rule(name="look", pattern=pattern, replace=look), text)
    assert seen == [("x", "Abs"), ("b", "Relu")]
    assert changed == {}
