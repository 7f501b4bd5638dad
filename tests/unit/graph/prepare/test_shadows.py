from __future__ import annotations

import onnx
import pytest

from epctx.graph.prepare import shadows
from epctx.graph.prepare.inference import infer
from epctx.graph.serde import protos
from tests.kit import onnx_text

BODIES = {
    "a loop's input has the name of an outer shape": (
        "g (float[2,3] x, int64[2] n) => (int64[2] t, float[k,a,b] z) <int64 m = {3}, bool c = {1}>"
        " { s = Shape(x) t, z = Loop(m, c, n) <body = b (int64 i, bool d, int64[2] s) =>"
        " (bool e, int64[2] u, float[3,2] o) { e = Identity(d) u = Identity(s) o = Reshape(x, s) }>"
        " p = Reshape(x, s) }",
        {"b.o": [3, 2]},
    ),
    "a branch has the name of its sibling": (
        "g (bool c, float[2,3] x, int64[2] n) => (float[p,q] y) { y = If(c) <"
        "then_branch = t () => (float[2,3] o) { s = Shape(x) o = Reshape(x, s) },"
        "else_branch = e () => (float[3,2] w) { s = Abs(n) w = Reshape(x, s) }> }",
        {"t.o": [2, 3], "e.w": [3, 2]},
    ),
    "a branch has a name that is made later": (
        "g (bool c, float[2,3] x, int64[2] n) => (float[p,q] y, float[2,3] s) { y = If(c) <"
        "then_branch = t () => (float[3,2] o) { s = Reshape(x, n) o = Relu(s) },"
        "else_branch = e () => (float[2,3] w) { w = Relu(x) }> s = Relu(x) }",
        {"t.o": [3, 2], "e.w": [2, 3], "g.s": [2, 3]},
    ),
    "a scan's input has an outer name and no type": (
        "g (float[4,3] x, float[3] a) => (float[3] y, float[4,3] z) { v = Relu(x)"
        " y, z = Scan <num_scan_inputs = 1, body = b (s, v) => (y, z) {"
        " y = Add(s, v) z = Neg(y) }> (a, v) }",
        {"g.v": [4, 3], "b.z": [3], "g.z": [4, 3]},
    ),
}


@pytest.mark.parametrize(("body", "shapes"), BODIES.values(), ids=BODIES.keys())
def test_an_inner_value_has_its_own_shape(body: str, shapes: dict[str, list[int]]) -> None:
    model = onnx_text.proto(body)
    said: list[str] = []
    inferred = infer(model, said.append)
    assert said == []
    found = {
        f"{graph.name}.{value.name}": [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for graph in protos.graphs(inferred)
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }
    assert {name: found[name] for name in shapes} == shapes


@pytest.mark.parametrize("body", [body for body, _ in BODIES.values()], ids=BODIES.keys())
def test_names_are_unique_and_come_back(body: str) -> None:
    model = onnx_text.proto(body)
    before = model.SerializeToString()
    names = shadows.rename(model)
    made = [v for graph in protos.graphs(model) for node in graph.node for v in node.output]
    made += [value.name for graph in protos.graphs(model) for value in graph.input]
    assert names and len(made) == len({*made})
    onnx.checker.check_model(model)
    shadows.restore(model, names)
    assert model.SerializeToString() == before


def test_a_name_that_is_taken_is_left_alone() -> None:
    model = onnx_text.proto(
        "g (bool c, float[2] x) => (float[2] y) { a = Relu(x) b = Neg(a) y = If(c) <"
        "then_branch = t () => (float[2] o) { a = Abs(x) o = Relu(a) },"
        "else_branch = e () => (float[2] w) { w = Relu(b) }> }"
    )
    model.graph.node[1].output[0] = model.graph.node[2].attribute[1].g.node[0].input[0] = "a/0"
    assert list(shadows.rename(model)) == ["a/1"]
