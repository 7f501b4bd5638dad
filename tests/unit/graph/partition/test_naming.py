from __future__ import annotations

from epctx.graph.partition.naming import Names
from tests.kit import onnx_text

_BODY = "d (float[3] x) => (float[3] y) { t = Neg(x) y = Neg(t) }"


def test_an_operator_finds_its_body_by_the_names_that_it_had() -> None:
    whole = onnx_text.model(
        "g (float[3] x) => (float[3] y) { t = Neg(x) y = Abs(t) }", opsets='"" : 21, "own" : 1'
    )
    fragment = onnx_text.model(
        f"f (float[3] x) => (float[3] y) {{ y = own.Find(x) <body = {_BODY}> }}",
        opsets='"" : 21, "own" : 1',
        infer=False,
    )
    names = Names(whole.graph, [fragment.graph], gone=[whole.graph[1]])
    names.assign(fragment.graph, kept=frozenset(fragment.graph.outputs))
    body = fragment.graph[0].attributes["body"].as_graph()
    assert [value.name for value in (*body.inputs, *body.outputs)] == ["x", "y"]
    assert body[0].outputs[0].name == "t_1", "this one nobody finds by its name"
