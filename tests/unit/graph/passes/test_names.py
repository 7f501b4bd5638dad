"""Values of subgraphs get names of their own."""

from __future__ import annotations

import numpy as np

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
