"""A model's main graph as integers, and partitions cut out of it."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from epctx.errors import ModelError
from epctx.graph.dataflow import Dataflow
from tests.kit.onnx_text import model, names

BRANCHES = """
g (float[2] x, bool c) => (float[2] y) <float[2] w = {1.0, 2.0}, float[2] v = {3.0, 4.0}> {
    [relu] h = Relu(x)
    [if] i = If(c) <
        then_branch = t () => (float[2] p) {
            [inner] p = If(c) <
                then_branch = tt () => (float[2] a) { a = Add(h, w) },
                else_branch = te () => (float[2] b) { b = Neg(x) }
            >
        },
        else_branch = e () => (float[2] q) { q = Identity(v) }
    >
    [add] y = Add(i, v)
}"""


def value_names(values: tuple[ir.Value, ...]) -> list[str | None]:
    return [value.name for value in values]


def test_a_partition_names_its_border_in_fixed_order() -> None:
    flow = Dataflow(model(BRANCHES))
    partition = flow.cut(3, [1])
    assert partition.provider == 3
    assert names(partition.nodes) == ["if"]
    assert value_names(partition.inputs) == ["x", "c", "h"], "graph inputs first, in their order"
    assert value_names(partition.outputs) == ["i"]
    assert value_names(partition.initializers) == ["w", "v"]
    whole = flow.cut(0, [2, 0, 1])
    assert names(whole.nodes) == ["relu", "if", "add"]
    assert value_names(whole.inputs) == ["x", "c"]
    assert value_names(whole.outputs) == ["y"]


def test_an_initializer_that_the_caller_can_replace_is_an_input() -> None:
    source = model("g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }")
    source.graph.inputs.append(source.graph.initializers["w"])
    flow = Dataflow(source)
    assert value_names(flow.cut(0, [0]).inputs) == ["x", "w"]
    assert flow.cut(0, [0]).initializers == ()
    assert flow.constants() == [False]


def test_constants_are_what_is_known_before_a_run() -> None:
    flow = Dataflow(
        model("""g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> {
            c = Constant <value_floats = [1.0, 2.0]> ()
            n = Neg(w)
            a = Add(c, n)
            y = Add(a, x)
        }""")
    )
    assert flow.constants() == [True, True, True, False]


def test_a_graph_in_disorder_is_sorted_by_captured_values_too() -> None:
    source = model(BRANCHES)
    first = source.graph[0]
    source.graph.remove(first)
    source.graph.append(first)
    assert names(Dataflow(source).nodes) == ["relu", "if", "add"]


def test_a_cycle_is_refused() -> None:
    source = model("g (float[2] x) => (float[2] y) { [a] h = Add(x, x) [b] y = Relu(h) }")
    source.graph[0].replace_input_with(1, source.graph[1].outputs[0])
    with pytest.raises(ModelError, match="cycle"):
        Dataflow(source)


def test_a_value_that_nothing_makes_is_refused() -> None:
    source = model("g (float[2] x) => (float[2] y) { [a] y = Add(x, x) }")
    source.graph[0].replace_input_with(1, ir.Value(name="ghost"))
    with pytest.raises(ModelError, match="node 'a' \\(Add\\): nothing makes \"ghost\""):
        Dataflow(source)
