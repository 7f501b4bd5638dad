"""A model cut into pieces computes what it did, and no other cuts are better."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable, Sequence
from itertools import combinations, pairwise
from unittest import mock

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st

from epctx.graph.model import Replacement
from epctx.graph.partition import layout, pieces, surgery
from epctx.graph.partition.pieces import SLACK, balance, fewest
from epctx.graph.serde import canonical
from tests.kit import strategies
from tests.kit.onnx_text import reorder, run, session

Values = dict[str, np.ndarray]


@st.composite
def models(draw: st.DrawFn) -> ir.Model:
    """A random model in which some values are quantized and dequantized for all their users."""
    model = draw(strategies.elementwise_models())
    graph = model.graph
    parameters = []
    for name, array in (("scale", np.float32(0.25)), ("zero", np.int8(3))):
        tensor = ir.tensor(array, name=name)
        parameters.append(
            ir.Value(
                name=name,
                type=ir.TensorType(tensor.dtype),
                shape=ir.Shape([]),
                const_value=tensor,
            )
        )
        graph.register_initializer(parameters[-1])
    for node in list(graph):
        value = node.outputs[0]
        if value.uses() and draw(st.integers(0, 2)) == 0:
            users = list(value.uses())
            q, dq = ir.Value(name=f"{value.name}_q"), ir.Value(name=f"{value.name}_dq")
            q.type, q.shape = ir.TensorType(ir.DataType.INT8), ir.Shape([3])
            dq.type, dq.shape = value.type, ir.Shape([3])
            chain = [
                ir.node("QuantizeLinear", [value, *parameters], outputs=[q], name=f"{node.name}_q"),
                ir.node("DequantizeLinear", [q, *parameters], outputs=[dq], name=f"{node.name}_d"),
            ]
            graph.insert_after(node, chain)
            for user, place in users:
                user.replace_input_with(place, dq)
            if draw(st.integers(0, 3)) == 0:
                graph.outputs.append(dq)
    return model


def feeds(data: st.DataObject, model: ir.Model) -> Values:
    values: Values = {"flag": np.array(data.draw(st.booleans()))}
    for value in model.graph.inputs[:-1]:
        values[str(value.name)] = np.array([1.5, -2.0, len(values)], np.float32)
    return values


def check_pieces(model: ir.Model, count: int, values: Values) -> None:
    """Cut the model, check the partitions and run them one after another."""
    originals = set(model.graph)
    shuffled = model.clone()
    reorder(shuffled, seed=count)
    wanted = dict(zip([str(v.name) for v in model.graph.outputs], run(model, values), strict=True))
    plan = pieces.choose({"m": model}, base=1, cost=lambda v: 7, count=count)["m"]
    assert pieces.choose({"m": shuffled}, base=1, cost=lambda v: 7, count=count)["m"] == plan
    again = pieces.choose({"m": model}, base=1, cost=lambda v: 7, at=[c.after for c in plan.cuts])
    assert [(c.after, c.values) for c in again["m"].cuts] == [
        (c.after, c.values) for c in plan.cuts
    ]
    partitions = pieces.divide(model, plan)
    onnx.checker.check_model(ir.serde.serialize_model(model), full_check=True)
    assert len(partitions) == count
    nodes = [node for partition in partitions for node in partition.nodes]
    assert nodes == list(model.graph) and originals <= set(nodes)
    assert len({node.name for node in nodes}) == len(nodes) == len(set(nodes))
    ready = dict(values)
    made: set[str] = set()
    for number, partition in enumerate(partitions):
        assert partition.outputs and partition.nodes
        inputs = [str(value.name) for value in partition.inputs]
        crossed = {name for cut in plan.cuts[max(0, number - 1) : number] for name in cut.values}
        assert {name for name in inputs if name in made} <= crossed
        assert plan.memory[number] == 1 + 7 * len(partition.initializers)
        piece = onnx.ModelProto.FromString(canonical.serialize(surgery.extract(model, partition)))
        names = [str(value.name) for value in partition.outputs]
        outputs = session(piece).run(names, {name: ready[name] for name in inputs})
        ready.update(zip(names, outputs, strict=True))
        made.update(names)
    surgery.splice(
        model,
        [Replacement(partition=p, fragment=surgery.extract(model, p)) for p in partitions],
    )
    joined = run(model, values)
    for (name, right), put_back in zip(wanted.items(), joined, strict=True):
        np.testing.assert_array_equal(ready[name], right)
        np.testing.assert_array_equal(put_back, right)


@given(st.data())
def test_one_after_another_the_pieces_compute_what_the_model_does(data: st.DataObject) -> None:
    model = data.draw(models())
    values = feeds(data, model)
    # The share of nodes that are cheap: none in a model as small as this, or many of them.
    with mock.patch.object(layout, "_CHEAP_SHARE", data.draw(st.sampled_from([100, 3, 2]))):
        most = len(layout.Layout(model).candidates) + 1
        check_pieces(model, data.draw(st.integers(1, most)), values)


BLOCKS = st.lists(
    st.dictionaries(st.integers(0, 6), st.just(0), max_size=4), min_size=1, max_size=8
)


@given(st.data())
def test_no_other_cuts_are_better(data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(1, 40)) for _ in range(7)]
    blocks: list[dict[Hashable, int]] = [
        {key: sizes[key] for key in block} for block in data.draw(BLOCKS)
    ]
    tolls = [data.draw(st.integers(0, 9)) for _ in blocks]
    count = data.draw(st.integers(1, len(blocks)))

    def runs_of(cuts: Sequence[int]) -> list[int]:
        runs = pairwise((0, *cuts, len(blocks)))
        return [sum(dict(ChainMap(*map(dict, blocks[a:b]))).values()) for a, b in runs]

    def largest(cuts: Sequence[int]) -> int:
        return max(runs_of(cuts))

    def toll(cuts: Sequence[int]) -> int:
        return sum(tolls[cut] for cut in cuts)

    every = list(combinations(range(1, len(blocks)), count - 1))
    best = min(map(largest, every))
    near = [cuts for cuts in every if largest(cuts) <= best + best // SLACK]
    allowed = [cuts for cuts in near if min(runs_of(cuts)) >= best // SLACK] or near
    chosen = tuple(balance(blocks, tolls, count))
    assert chosen in allowed
    assert toll(chosen) == min(map(toll, allowed))
    runs = fewest(blocks, best)
    assert runs is not None and runs <= count
    assert tuple(balance(blocks, tolls, count, ceiling=best)) in [
        cuts for cuts in every if largest(cuts) <= best
    ]
