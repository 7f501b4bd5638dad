"""Partitions as the published file has them: one for each EPContext node, the rest counted."""

from __future__ import annotations

import onnx_ir as ir

from epctx.graph.dataflow import Dataflow
from epctx.graph.model import Placement, Replacement
from epctx.graph.partition import surgery
from epctx.graph.partition.contexts import divide, is_one, placement
from tests.kit import onnx_text

CHAIN = """
    g (float[2] x) => (float[2] z) {
        [a] va = Abs (x)
        [b] vb = Exp (va)
        [c] vc = Floor (vb)
        [d] vd = Add (vc, va)
        [e] z = Neg (vd)
    }
"""
IN_TWO = """
    g (float[2] x) => (float[2] z) <float[2] va, float[2] vb, float[2] vc> {
        [first] va, vb = com.microsoft.EPContext <source = "htp"> (x)
        [c] vc = Floor (vb)
        [second] z = com.microsoft.EPContext <source = "htp"> (va, vc)
    }
"""
IN_ONE = """
    g (float[2] x) => (float[2] z) { [all] z = com.microsoft.EPContext <source = "htp"> (x) }
"""


def parsed(text: str) -> ir.Model:
    return onnx_text.model(text, opsets='"" : 21, "com.microsoft" : 1')


def replaced(by: str) -> tuple[ir.Model, Dataflow, Replacement]:
    source = parsed(CHAIN)
    flow = Dataflow(source)
    return source, flow, Replacement(partition=flow.cut(0, range(5)), fragment=parsed(by))


def test_each_epcontext_node_has_the_nodes_between_its_ends() -> None:
    _, flow, replacement = replaced(IN_TWO)
    left = {node for node in flow.nodes if node.name == "c"}
    pieces = divide(flow, replacement, left)
    assert [[node.name for node in piece.nodes] for piece in pieces] == [["a", "b"], ["d", "e"]]
    assert [[value.name for value in piece.inputs] for piece in pieces] == [["x"], ["va", "vc"]]
    assert [[value.name for value in piece.outputs] for piece in pieces] == [["va", "vb"], ["z"]]


def test_what_the_ep_folded_is_in_the_piece_of_its_user() -> None:
    """An EPContext node that begins behind a node: the node was computed when it was compiled."""
    _, flow, replacement = replaced(
        IN_TWO.replace("va, vb = com", "vb = com").replace("va, vc", "vc")
    )
    pieces = divide(flow, replacement, {node for node in flow.nodes if node.name == "c"})
    assert [[node.name for node in piece.nodes] for piece in pieces] == [["a", "b"], ["d", "e"]]


def test_a_partition_that_is_one_node_stays_as_it_is() -> None:
    _, flow, replacement = replaced(IN_ONE)
    assert is_one(replacement)
    assert divide(flow, replacement, ()) == (replacement.partition,)
    assert not is_one(replaced(IN_TWO)[2])


def test_nodes_and_crossings_of_the_published_model_are_counted() -> None:
    source, _, replacement = replaced(IN_TWO)
    surgery.splice(source, [replacement])
    found = placement(source)
    assert found == Placement(context_nodes=2, default_nodes=1, crossings=2), "vb and vc, not va"


def test_epcontext_nodes_of_two_eps_cross_without_a_node_between() -> None:
    text = IN_TWO.replace(
        '[second] z = com.microsoft.EPContext <source = "htp">',
        ('[second] z = com.microsoft.EPContext <source = "vino">'),
    )
    assert placement(parsed(text)).crossings == 3


def test_models_come_to_the_sum_of_those_that_were_compiled() -> None:
    one = Placement(context_nodes=2, default_nodes=1, crossings=2)
    assert Placement.of_parts([one, None, one]) == Placement(
        context_nodes=4, default_nodes=2, crossings=4
    )
