from __future__ import annotations

import onnx_ir as ir
import pytest

from epctx.errors import EpctxError
from epctx.graph.serde.ordering import order
from tests.kit import onnx_text


def _names(model: ir.Model) -> list[str | None]:
    return onnx_text.names(order(model.graph).nodes)


def test_nodes_come_depth_first_from_the_outputs_inputs_first() -> None:
    model = onnx_text.model(
        "g (float[2] x) => (float[2] z, float[2] w) { "
        "[a] a = Relu(x) [b] b = Neg(x) [c] c = Abs(x) "
        "[w] w = Add(a, b) [z] z = Add(c, b) }"
    )
    assert _names(model) == ["c", "b", "z", "a", "w"]


def test_nodes_that_reach_no_output_come_last_by_what_they_make() -> None:
    model = onnx_text.model(
        "g (float[2] x) => (float[2] z) { "
        "[q] q = Relu(x) [p2] p2 = Relu(p1) [p1] p1 = Relu(x) [z] z = Relu(x) }",
        infer=False,
    )
    assert _names(model) == ["z", "p1", "p2", "q"]


def test_what_a_body_reads_comes_before_the_node_around_it() -> None:
    model = onnx_text.model(
        "g (float[2] x, bool c) => (float[2] z) { "
        "[if] z = If(c) <then_branch = t () => (float[2] o) { [t2] o = Relu(i) [t1] i = Neg(y) }, "
        "else_branch = e () => (float[2] p) { [e] p = Relu(w) }> "
        "[y] y = Relu(x) [w] w = Abs(x) }",
        infer=False,
    )
    ordered = order(model.graph)
    assert onnx_text.names(ordered.nodes) == ["w", "y", "if"]
    else_branch, then_branch = ordered.bodies[ordered.nodes[-1]]
    assert onnx_text.names(else_branch.nodes) == ["e"]
    assert onnx_text.names(then_branch.nodes) == ["t1", "t2"]
    assert {value.name for value in ordered.used} >= {"c", "y", "w", "z", "x"}


def test_a_chain_of_any_length_needs_no_stack() -> None:
    x = ir.Value(name="v0")
    last, nodes = x, []
    for i in range(20_000):
        nodes.append(ir.Node("", "Relu", [last], outputs=[ir.Value(name=f"v{i + 1}")]))
        last = nodes[-1].outputs[0]
    graph = ir.Graph([x], [last], nodes=reversed(nodes), opset_imports={"": 17})
    assert list(order(graph).nodes) == nodes


@pytest.mark.parametrize("reachable", [True, False])
def test_a_cycle_is_a_bug(reachable: bool) -> None:
    x = ir.Value(name="x")
    a = ir.Node("", "Add", [x, None], outputs=[ir.Value(name="a")])
    b = ir.Node("", "Relu", [a.outputs[0]], outputs=[ir.Value(name="b")])
    a.replace_input_with(1, b.outputs[0])
    c = ir.Node("", "Relu", [x], outputs=[ir.Value(name="c")])
    output = b.outputs[0] if reachable else c.outputs[0]
    graph = ir.Graph([x], [output], nodes=[a, b, c], opset_imports={"": 17}, name="main")
    with pytest.raises(EpctxError, match="'main' has a cycle"):
        order(graph)
