"""One graph has one serialization and one digest, however its file is written."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st

from epctx.graph.serde import canonical
from epctx.graph.serde.ordering import order
from tests.kit import strategies


def _inside(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model's graph as the body of an If, which takes all it reads from nodes around it."""
    body, flag = model.graph, model.graph.input[-1].name
    taken = [value.name for value in body.input if value.name != flag]
    nodes = []
    for name in reversed(taken):
        nodes.append(onnx.helper.make_node("Neg", [f"{name} outside"], [name], name=f"neg {name}"))
    outer = onnx.GraphProto(name="outer", input=body.input, initializer=body.initializer)
    for value in outer.input:
        value.name += " outside" if value.name != flag else ""
    del body.input[:], body.initializer[:]
    branch = onnx.GraphProto()
    branch.CopyFrom(body)
    outputs = [f"{value.name} of the If" for value in body.output]
    nodes.append(onnx.helper.make_node("If", [flag], outputs, then_branch=body, else_branch=branch))
    for value, name in zip(body.output, outputs, strict=True):
        outer.output.add().CopyFrom(value)
        outer.output[-1].name = name
    outer.node.extend(nodes)
    imports = [onnx.helper.make_opsetid("", 21)]
    return onnx.helper.make_model(outer, opset_imports=imports, ir_version=10)


@given(st.data())
def test_the_form_is_one_for_every_disguise(data: st.DataObject) -> None:
    model = ir.serde.serialize_model(data.draw(strategies.elementwise_models()))
    if data.draw(st.booleans()):
        model = _inside(model)
    disguise = data.draw(strategies.disguises(model))

    one, other = (ir.serde.deserialize_model(proto) for proto in (model, disguise))

    written = canonical.serialize(one)
    assert canonical.serialize(other) == written
    assert canonical.digest(other) == canonical.digest(one)
    again = ir.serde.deserialize_model(onnx.ModelProto.FromString(written))
    assert canonical.serialize(again) == written
    assert canonical.digest(again) == canonical.digest(one)
    onnx.checker.check_model(written)


@given(strategies.elementwise_models(max_nodes=25))
def test_an_order_has_every_node_once_after_what_it_reads(model: ir.Model) -> None:
    ordered = order(model.graph)
    assert sorted(map(id, ordered.nodes)) == sorted(map(id, model.graph))
    place = {node: i for i, node in enumerate(ordered.nodes)}
    for node in ordered.nodes:
        inner = [n for body in ordered.bodies.get(node, ()) for n in body.nodes]
        for value in (v for n in (node, *inner) for v in n.inputs if v is not None):
            producer = value.producer()
            if producer in place:
                assert place[producer] < place[node]


@given(st.data())
def test_different_graphs_have_different_forms(data: st.DataObject) -> None:
    model = ir.serde.serialize_model(data.draw(strategies.elementwise_models()))
    other = onnx.ModelProto()
    other.CopyFrom(model)
    node = other.graph.node[data.draw(st.integers(0, len(other.graph.node) - 1))]
    node.name += "'"
    one, two = (ir.serde.deserialize_model(proto) for proto in (model, other))
    assert canonical.serialize(one) != canonical.serialize(two)
    assert canonical.digest(one) != canonical.digest(two)
