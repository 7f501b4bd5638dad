"""Equal nodes and equal initializers are merged; what only looks equal is not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from tests.kit import onnx_text, optimizing

X = {"x": np.array([1.5, -2.0, 3.0], np.float32)}


def merged(graph: str, feeds: optimizing.Feeds, opsets: str = '"" : 21') -> int:
    model = onnx_text.model(graph, opsets=opsets)
    result = optimizing.check(model, feeds, "merge-subexpressions")
    return optimizing.changes(result).get("merge-subexpressions", {}).get("nodes", 0)


def test_merges_nodes_that_compute_the_same() -> None:
    count = merged(
        "g (float[3] x) => (float[3] y) { a = Sin(x) b = Sin(x) c = Neg(a) d = Neg(b)"
        " e = LeakyRelu<alpha = 0.5>(c) f = LeakyRelu<alpha = 0.5>(d) y = Add(e, f) }",
        X,
    )
    assert count == 3


@pytest.mark.parametrize(
    "graph",
    [
        "a = LeakyRelu<alpha = 0.5>(x) b = LeakyRelu<alpha = 0.25>(x) y = Add(a, b)",
        "a = LeakyRelu<alpha = 0.0>(x) b = LeakyRelu<alpha = -0.0>(x) y = Add(a, b)",
        "a = Cast<to = 10>(x) b = Cast<to = 16>(x) c = Cast<to = 1>(a) d = Cast<to = 1>(b)"
        " y = Add(c, d)",
    ],
)
def test_attributes_count_by_their_bits(graph: str) -> None:
    assert merged(f"g (float[3] x) => (float[3] y) {{ {graph} }}", X) == 0


@pytest.mark.parametrize(
    "node",
    [
        "Bernoulli",
        "RandomNormalLike",
        "RandomUniformLike",
        "RandomUniformLike<seed = 1.0>",
        "Multinomial",
        "custom.Noise",
    ],
)
def test_what_is_random_or_unknown_is_not_merged(node: str) -> None:
    kind = "int32[1,1]" if node == "Multinomial" else "float[1,3]"
    model = onnx_text.model(
        f"g (float[1,3] x) => ({kind} y, {kind} z) {{ a = {node}(x) b = {node}(x)"
        " y = Identity(a) z = Identity(b) }",
        opsets='"" : 21, "custom" : 1',
        infer=False,
    )
    result = optimizing.optimized(model, "merge-subexpressions")
    assert optimizing.changes(result) == {}


@pytest.mark.parametrize(("training", "count"), [("{1}", 0), ("{0}", 1)])
def test_dropout_is_random_in_training_only(training: str, count: int) -> None:
    model = onnx_text.model(
        f"g (float[3] x) => (float[3] y) <float r = {{0.5}}, bool t = {training}>"
        " { a = Dropout(x, r, t) b = Dropout(x, r, t) y = Add(a, b) }"
    )
    result = optimizing.optimized(model, "merge-subexpressions")
    assert optimizing.changes(result).get("merge-subexpressions", {}).get("nodes", 0) == count


def test_outputs_of_the_graph_stay_two() -> None:
    graph = "g (float[3] x) => (float[3] y, float[3] z) { y = Sin(x) z = Sin(x) }"
    assert merged(graph, X) == 0


def test_merges_initializers_of_one_type_shape_and_content() -> None:
    model = onnx_text.model(
        "g (float[3] x) => (float[3] y) <float[3] a = {1,2,3}, float[3] b = {1,2,3},"
        " float[1,3] c = {1,2,3}, float[3] d = {1,2,4}, int32[3] e = {1,2,3}, int32[3] f = {1,2,3}>"
        " { p = Add(x, a) q = Mul(p, b) r = Add(q, c) s = Add(r, d) t = Squeeze(s)"
        " g1 = Add(e, f) h = Cast<to = 1>(g1) y = Add(t, h) }"
    )
    result = optimizing.check(model, X, "merge-initializers")
    assert optimizing.changes(result) == {"merge-initializers": {"initializers": 2, "bytes": 24}}
    assert sorted(optimizing.constants(result)) == ["a", "c", "d", "e"]


def test_zeros_of_two_signs_are_two_initializers() -> None:
    model = onnx_text.model(
        "g (float[3] x) => (float[3] y) <float a = {0.0}, float b = {-0.0}>"
        " { p = Mul(x, a) q = Mul(x, b) y = Sub(p, q) }"
    )
    result = optimizing.check(model, X, "merge-initializers")
    assert optimizing.changes(result) == {}


def test_an_initializer_that_can_be_fed_or_is_an_output_stays() -> None:
    model = onnx_text.model(
        "g (float[3] a) => (float[3] y, float[3] c) <float[3] b = {1,2,3}, float[3] c = {1,2,3}>"
        " { p = Add(a, b) y = Add(p, c) }"
    )
    fed = model.graph.inputs[0]
    fed.const_value = ir.tensor(np.array([1, 2, 3], np.float32), name="a")
    model.graph.register_initializer(fed)
    result = optimizing.check(model, {"a": np.ones(3, np.float32)}, "merge-initializers")
    assert optimizing.changes(result) == {}


def test_constants_that_are_dequantized_stay_each_node_s_own() -> None:
    model = onnx_text.model(
        "g (float[3] x) => (float[3] y) <uint8[3] p = {1, 2, 3}, uint8[3] q = {1, 2, 3},"
        " float s = {0.5}> { a = DequantizeLinear(p, s) b = DequantizeLinear(q, s)"
        " c = Add(x, a) y = Add(c, b) }"
    )
    result = optimizing.check(model, X, "merge-initializers")
    assert not optimizing.changes(result).get("merge-initializers")
