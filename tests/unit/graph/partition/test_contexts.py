"""Partitions as the published file has them: one for each EPContext node, the rest counted."""

from __future__ import annotations

from collections.abc import Mapping

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


NODE = "c, d = com.microsoft.EPContext (a, b)"
SHARED = """
    g (uint8[2] q, float[2] b, float s) => (float[2] c, float[2] d, float[2] e) {
        [dq] a = DequantizeLinear (q, s)
        [e] e = Neg (a)
        [ctx] c, d = com.microsoft.EPContext (a, b)
    }
"""


def renamed(text: str, names: Mapping[str, str]) -> ir.Node:
    """The EPContext node of a model after values were renamed."""
    source = parsed(text)
    node = next(node for node in source.graph if node.op_type == "EPContext")
    node.meta[ENDS] = ends(node)
    for value in (*node.inputs, *node.outputs):
        assert value is not None
        value.name = names.get(value.name or "", value.name)
    bind_ends(source.graph)
    return node


def overrides(node: ir.Node) -> str | None:
    found = node.attributes.get(OVERRIDES)
    return None if found is None else found.as_string()


def test_a_node_tells_the_names_of_all_its_ends_once_one_was_renamed() -> None:
    text = f"g (float[2] a, float[2] b) => (float[2] c, float[2] d) {{ {NODE} }}"
    assert overrides(renamed(text, {})) is None
    assert overrides(renamed(text, {"b": "p_b"})) == "a=a;p_b=b;c=c;d=d;"
    assert overrides(renamed(text, {"a": "c", "c": "y"})) == "c=a;b=b;y=c;d=d;", "either side alone"
    named = text.replace("Context (", 'Context <io_name_overrides = "a=x;d=y;"> (')
    assert overrides(renamed(named, {"a": "p_a"})) == "p_a=x;b=b;c=c;d=y;"


@pytest.mark.parametrize(
    "names",
    [{"a": "b", "b": "a"}, {"a": "b", "b": "x"}, {"a": "b"}, {"c": "d", "d": "x"}, {"a": "x;y"}],
)
def test_names_that_an_ep_would_take_for_others_are_refused(names: Mapping[str, str]) -> None:
    text = f"g (float[2] a, float[2] b) => (float[2] c, float[2] d) {{ {NODE} }}"
    with pytest.raises(ManifestError) as caught:
        renamed(text, names)
    assert caught.value.code is Code.COMPOSITION and "prefix" in caught.value.remedy


def test_a_node_shares_no_dequantizer() -> None:
    node = renamed(SHARED, {})
    assert overrides(node) == "a_1=a;b=b;c=c;d=d;"
    own = node.inputs[0]
    assert own is not None and own.dtype == ir.DataType.FLOAT and own.shape == ir.Shape([2])
    copy = own.producer()
    assert copy is not None and (copy.op_type, copy.name) == ("DequantizeLinear", "dq_1")
    assert [value.name for value in copy.inputs if value is not None] == ["q", "s"]
    alone = SHARED.replace("[e] e = Neg (a)", "[e] e = Neg (b)")
    assert overrides(renamed(alone, {})) is None
    output = SHARED.replace("float[2] e)", "float[2] e, float[2] a)")
    assert overrides(renamed(output, {})) is not None
