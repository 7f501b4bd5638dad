"""Partitioned, cut out and put back, a model computes what it did."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st

from epctx.graph.dataflow import Dataflow, subgraphs
from epctx.graph.model import Replacement
from epctx.graph.partition import surgery
from epctx.manifest import PartitionSettings
from epctx.providers.base import PartitionedModel
from tests.kit import strategies
from tests.kit.fake_providers import Taker, partitioned
from tests.kit.onnx_text import run, session

Values = dict[str, np.ndarray]


def taker(data: st.DataObject, model: ir.Model, label: str) -> Taker:
    taken = data.draw(st.sets(st.sampled_from(sorted(str(node.name) for node in model.graph))))
    return Taker(lambda node: node.name in taken, label=label)


def feeds(data: st.DataObject, model: ir.Model) -> Values:
    found: Values = {"flag": np.array(data.draw(st.booleans()))}
    for value in model.graph.inputs[:-1]:
        found[str(value.name)] = np.array([1.5, -2.0, len(found)], np.float32)
    return found


def disguise(fragment: ir.Model) -> None:
    """Give all that is inside a fragment the names that the next fragment's insides get too."""
    graph = fragment.graph
    outputs = set(graph.outputs)
    for place, node in enumerate(graph):
        node.name = f"n{place}"
        for value in node.outputs:
            if value not in outputs:
                value.name = f"inside{place}"
        for body in subgraphs(node):
            for inner in body:
                for value in inner.outputs:
                    value.name = f"v{place}"  # as values of the main graph are named
    for place, value in enumerate(list(graph.initializers.values())):
        assert value.const_value is not None
        array = value.const_value.numpy().copy()
        value.const_value = None
        value.name = f"inside_w{place}"
        value.const_value = ir.tensor(array, name=value.name)


@given(st.data())
def test_put_back_the_model_computes_the_same(data: st.DataObject) -> None:
    model = data.draw(strategies.elementwise_models())
    values = feeds(data, model)
    wanted = run(model, values)
    interface = [[v.name for v in side] for side in (model.graph.inputs, model.graph.outputs)]
    result = partitioned(model, taker(data, model, "one"), taker(data, model, "two"))
    fragments = [surgery.extract(model, partition) for partition in result.partitions]
    if data.draw(st.booleans()):
        for fragment in fragments:
            disguise(fragment)
    replacements = [
        Replacement(partition=partition, fragment=fragment)
        for partition, fragment in zip(result.partitions, fragments, strict=True)
    ]
    surgery.splice(model, replacements)
    proto = ir.serde.serialize_model(model)
    onnx.checker.check_model(proto, full_check=True)
    assert [[v.name for v in side] for side in (model.graph.inputs, model.graph.outputs)] == (
        interface
    )
    assert len({node.name for node in model.graph}) == len(model.graph)
    assert all(value.shape == ir.Shape([3]) for node in model.graph for value in node.outputs)
    for found, right in zip(run(model, values), wanted, strict=True):
        np.testing.assert_array_equal(found, right)


@given(st.data())
def test_each_part_for_itself_computes_its_part(data: st.DataObject) -> None:
    model = data.draw(strategies.elementwise_models())
    values = feeds(data, model)
    wanted = dict(zip([str(v.name) for v in model.graph.outputs], run(model, values), strict=True))
    settings = PartitionSettings(min_nodes=data.draw(st.integers(1, 2)))
    one, two = taker(data, model, "one"), taker(data, model, "two")
    result = partitioned(model, one, two, settings=settings)
    found = piece_by_piece(model, result, values)
    for name, right in wanted.items():
        np.testing.assert_array_equal(found[name], right)


def piece_by_piece(model: ir.Model, result: PartitionedModel, values: Values) -> Values:
    """Run every partition, and every node in none, as a session of its own, in a possible order."""
    flow = Dataflow(model)
    taken = {node for partition in result.partitions for node in partition.nodes}
    alone = [flow.cut(-1, [i]) for i, node in enumerate(flow.nodes) if node not in taken]
    pieces = [*result.partitions, *(piece for piece in alone if piece.outputs)]
    known = dict(values)
    while pieces:
        ready = [p for p in pieces if all(value.name in known for value in p.inputs)]
        assert ready, "the partitions and the other nodes wait for each other"
        for piece in ready:
            own = session(surgery.extract(model, piece))
            names = [str(value.name) for value in piece.outputs]
            given_values = {str(value.name): known[str(value.name)] for value in piece.inputs}
            known.update(zip(names, own.run(names, given_values), strict=True))
        pieces = [piece for piece in pieces if piece not in ready]
    return known
