"""The order of a model's nodes, what crosses its places, and what is computed again."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from epctx.graph.partition.layout import Layout
from tests.kit.onnx_text import model, names, reorder


def ordered(source: ir.Model) -> list[str | None]:
    return names(list(Layout(source).flow.nodes))


def test_what_a_layer_gives_comes_with_the_layer() -> None:
    source = model("""
        g (float[2] x, float[2] past0, float[2] past1) =>
            (float[2] y, float[2] present1, float[2] present0) {
            [early] e = Neg(x)
            [l0] l0 = Relu(x)
            [l1] l1 = Relu(l0)
            [l2] l2 = Add(l1, e)
            [y] y = Abs(l2)
            [present1] present1 = Add(l1, past1)
            [present0] present0 = Add(l0, past0)
            [unused] u = Neg(l0)
        }""")
    wanted = ["l0", "present0", "unused", "l1", "present1", "early", "l2", "y"]
    assert ordered(source) == wanted
    for seed in range(5):
        reorder(source, seed)
        assert ordered(source) == wanted


def test_the_deeper_of_two_ways_comes_first_and_the_first_input_of_equals() -> None:
    source = model("""
        g (float[2] x) => (float[2] y) {
            [short] s = Neg(x)
            [deep1] d1 = Neg(x)
            [deep2] d2 = Neg(d1)
            [other] o = Abs(x)
            [y] y = Sum(o, s, d2)
        }""")
    assert ordered(source) == ["deep1", "deep2", "other", "short", "y"]


def test_bytes_that_cross_each_place() -> None:
    source = model("""
        g (float[2, n] x, float16[3] z) => (float[2, n] y, float16[3] h) {
            [h] h = Neg(z)
            [a] a = Neg(x)
            [b] b = Abs(a)
            [g] g = Relu(h)
            [c] c = Cast <to = 1> (g)
            [d] d = ReduceSum <keepdims = 0> (c)
            [y] y = Sum(a, b, d)
        }""")
    layout = Layout(source)
    assert ordered(source) == ["h", "g", "c", "d", "a", "b", "y"]
    # float16[3], the same, float[3], float[], and a float[2, n] or two of them with it
    assert [layout.toll[place] for place in layout.candidates] == [6, 6, 12, 4, 12, 20]
    assert layout.candidates == [1, 2, 3, 4, 5, 6]
    assert [layout.name_before(place) for place in layout.candidates] == list("hgcdab")


HEADS = {
    "Relu": "m = Relu(p)",
    "small weight": "m = Add(p, small)",
    "large weight": "l = Add(p, large) m = ReduceSum <keepdims = 1> (l)",
    "random": "m = RandomNormalLike(p)",
    "dropout of training": "m = Dropout(p, ratio, training)",
    "dropout": "m = Dropout(p)",
    "body": "m = If(training) <then_branch = t () => (float[1] a) { a = Neg(p) },"
    " else_branch = e () => (float[1] b) { b = Abs(p) }>",
    "another domain": "m = com.example.Relu(p)",
}


@pytest.mark.parametrize("kind", HEADS)
def test_cheap_is_what_repeats_exactly_and_has_no_large_weight(kind: str) -> None:
    body = " ".join(f"v{n} = Add(v{n - 1}, m)" for n in range(1, 300))
    source = model(
        f"g (float[1] x, float[1] p) => (float[1] v299)"
        f"<float[1] small = {{1.0}}, float ratio = {{0.5}}, bool training = {{1}}>"
        f"{{ {HEADS[kind].replace('large', 'x')} v0 = Add(x, m) {body} }}",
        opsets='"" : 21, "com.example" : 1',
    )
    if kind == "another domain":
        for node in source.graph:
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
            node.outputs[0].shape = ir.Shape([1])
    if kind == "large weight":
        array = np.zeros(20000, np.float32)
        weight = ir.Value(
            name="large",
            type=ir.TensorType(ir.DataType.FLOAT),
            shape=ir.Shape([20000]),
            const_value=ir.tensor(array, name="large"),
        )
        source.graph.register_initializer(weight)
        first = next(node for node in source.graph if node.outputs[0].name == "l")
        first.replace_input_with(1, weight)
    layout = Layout(source)
    is_cheap = kind in ("Relu", "small weight", "dropout")
    assert layout.again[layout.after["m"] - 1] == is_cheap
