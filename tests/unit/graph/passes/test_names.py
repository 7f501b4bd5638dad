"""Values of subgraphs get names of their own."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from epctx.graph import dataflow
from epctx.graph.passes import edit, names
from tests.kit import onnx_text, optimizing


def test_names_that_shadow_or_repeat_are_made_unique() -> None:
    model = onnx_text.model(
        "g (bool c, float[3] x) => (float[3] y) { y = If(c) <"
        " then_branch = t () => (float[3] u) <float[3] w = {1,2,3}> { a = Add(x, w) u = Neg(a) },"
        " else_branch = e () => (float[3] u) <float[3] w = {4,5,6}> { a = Mul(x, w) u = Cos(a) }>"
        " }"
    )
    feeds = {"c": np.array(True), "x": np.ones(3, np.float32)}
    result = optimizing.check(model, feeds, "unique-names")
    assert optimizing.changes(result) == {"unique-names": {"values": 3}}
    graphs = [result.model.graph, *result.model.graph.subgraphs()]
    names = [n for g in graphs for n in (*g.initializers, *(v.name for o in g for v in o.outputs))]
    assert sorted(map(str, names)) == ["a", "a_1", "u", "u_1", "w", "w_1", "y"]


def test_names_of_the_main_graph_stay() -> None:
    model = onnx_text.model("g (float[3] x) => (float[3] y) { a = Neg(x) y = Abs(a) }")
    result = optimizing.check(model, {"x": np.ones(3, np.float32)}, "unique-names")
    assert optimizing.changes(result) == {}


def _search(outer: str = "x") -> ir.Model:
    """A node of a domain that is not ONNX's, whose body has names of the graph around."""
    return onnx_text.model(
        f"g (float[3] x) => (float[3] y) {{ a = Neg(x) b = Identity({outer}) y = own.Find(a, b) <"
        "body = d (float[3] x, float[3] a) => (float[3] y) { t = Add(x, b) y = Mul(t, a) }> }",
        opsets='"" : 21, "own" : 1',
        infer=False,
    )


def _ends(model: ir.Model) -> tuple[list[str | None], list[str | None]]:
    (body,) = model.graph.subgraphs()
    return [v.name for v in body.inputs], [v.name for v in body.outputs]


def test_a_body_has_its_names_again_when_the_passes_are_done() -> None:
    model = _search()
    names.UniqueNamesPass()(model)
    assert _ends(model) == (["x_1", "a_1"], ["y_1"])
    names.give_back(model)
    assert _ends(model) == (["x", "a"], ["y"])
    assert [node.op_type for node in model.graph] == ["Neg", "Identity", "Find"]


def test_bodies_of_onnx_keep_the_names_that_the_passes_gave() -> None:
    model = onnx_text.model(
        "g (bool c, float[3] x) => (float[3] y) { y = If(c) <"
        " then_branch = t () => (float[3] y) { y = Neg(x) },"
        " else_branch = e () => (float[3] y) { y = Cos(x) }> }"
    )
    names.UniqueNamesPass()(model)
    names.give_back(model)
    assert [g.outputs[0].name for g in model.graph.subgraphs()] == ["y_1", "y_2"]


@pytest.mark.parametrize(("outer", "wanted"), [("x", "Identity"), ("a", "Neg")])
def test_what_passes_brought_into_a_body_is_not_taken_for_its_own(outer: str, wanted: str) -> None:
    """A pass lets the body read what the Identity outside reads, whose name the body has, too."""
    model = _search(outer)
    names.UniqueNamesPass()(model)
    identity = model.graph[1]
    assert identity.inputs[0] is not None
    identity.outputs[0].replace_all_uses_with(identity.inputs[0])
    edit.remove(identity)
    names.give_back(model)
    assert _ends(model) == (["x", "a"], ["y"])
    (find,) = (node for node in model.graph if node.op_type == "Find")
    (body,) = dataflow.subgraphs(find)
    (add,) = (node for node in body if node.op_type == "Add")
    read = add.inputs[1]
    assert read is not None and read.graph is model.graph
    assert read.name not in {"x", "a", "y"}
    producer = read.producer()
    assert producer is not None and producer.op_type == wanted
    again = ir.serde.deserialize_model(ir.serde.serialize_model(model))
    assert _ends(again) == (["x", "a"], ["y"])
