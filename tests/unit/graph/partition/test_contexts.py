"""Partitions as the published file has them: one for each EPContext node, the rest counted."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.graph.dataflow import Dataflow
from epctx.graph.epcontext import ENDS, OVERRIDES, ends
from epctx.graph.model import Placement, Replacement
from epctx.graph.partition import surgery
from epctx.graph.partition.contexts import bind_ends, divide, is_one, placement
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


ENDS_OF = """g (float[2] a, float[2] b) => (float[2] c, float[2] d) {
    c, d = com.microsoft.EPContext <io_name_overrides = "a=x;d=y;"> (a, b)
}"""
SHARED = """g (uint8[2] q, float s) => (float[2] c, float[2] e) {
    [dq] a = DequantizeLinear (q, s)
    [e] e = Neg (a)
    [ctx] c = com.microsoft.EPContext (a)
}"""


def bound(text: str, **names: str) -> ir.Node:
    """The EPContext node of a model after values were renamed."""
    source = parsed(text)
    node = next(node for node in source.graph if node.op_type == "EPContext")
    node.meta[ENDS] = ends(node)
    for value in (*node.inputs, *node.outputs):
        assert value is not None
        value.name = names.get(value.name or "", value.name)
    bind_ends(source.graph)
    return node


def overrides(text: str, **names: str) -> str | None:
    found = bound(text, **names).attributes.get(OVERRIDES)
    return None if found is None else found.as_string()


def test_a_node_tells_the_names_of_all_its_ends_once_one_was_renamed() -> None:
    assert overrides(ENDS_OF) == "a=x;d=y;"
    assert overrides(ENDS_OF, b="p_b") == "a=x;p_b=b;c=c;d=y;"
    plain = ENDS_OF.replace('<io_name_overrides = "a=x;d=y;">', "")
    assert overrides(plain) is None
    assert overrides(plain, a="c", c="z") == "c=a;b=b;z=c;d=d;", "inputs and outputs are apart"
    for names in ({"a": "b", "b": "a"}, {"a": "b"}, {"c": "d", "d": "z"}, {"a": "x;y"}):
        with pytest.raises(ManifestError) as caught:
            bound(plain, **names)
        assert caught.value.code is Code.COMPOSITION and "prefix" in caught.value.remedy


def test_a_node_shares_no_dequantizer() -> None:
    own = bound(SHARED).inputs[0]
    assert own is not None and (own.name, own.dtype) == ("a_1", ir.DataType.FLOAT)
    copy = own.producer()
    assert copy is not None and (copy.op_type, copy.name) == ("DequantizeLinear", "dq_1")
    assert [value.name for value in copy.inputs if value is not None] == ["q", "s"]
    assert overrides(SHARED) == "a_1=a;c=c;"
    assert overrides(SHARED.replace("Neg (a)", "Neg (s)")) is None, "it is read by the node alone"
    output = SHARED.replace("Neg (a)", "Neg (s)").replace("float[2] e)", "float[2] e, float[2] a)")
    assert overrides(output) is not None
