"""What is a constant, what becomes of it, and how far one sweep gets."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from epctx.graph.passes import scratch
from epctx.graph.passes.kernels import operation
from epctx.graph.serde import canonical
from tests.kit import onnx_text, optimizing

X = {"x": np.array([[1.5, -2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)}


def test_an_initializer_that_can_be_fed_is_no_constant() -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("ConstantOfShape", ["fed"], ["a"]),
            helper.make_node("ConstantOfShape", ["fixed"], ["b"]),
            helper.make_node("Add", ["a", "b"], ["y"]),
        ],
        "g",
        [value("fed", TensorProto.INT64, [2])],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([2, 3]), name) for name in ("fed", "fixed")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    result = optimizing.optimized(model, "basic")
    assert optimizing.ops(result) == {"ConstantOfShape": 1, "Add": 1}
    for feeds in ({}, {"fed": np.array([1, 3])}):
        (y,) = optimizing.run(canonical.serialize(result.model), feeds)
        assert np.asarray(y).shape == (2, 3)


def test_a_folded_output_keeps_its_name_through_an_identity() -> None:
    model = onnx_text.model(
        "g () => (int64[2] y, int64[2] z) <int64[2] a = {1,2}> { y = Add(a, a) z = Mul(y, a) }"
    )
    result = optimizing.check(model, {})
    assert optimizing.ops(result) == {"Identity": 2}
    assert sorted(optimizing.constants(result)) == ["y/value", "z/value"]


def test_folds_in_subgraphs_and_of_what_they_capture() -> None:
    model = onnx_text.model(
        "g (bool c, float[2,3] x) => (float[2,3] y) <int64[1] a = {3}> {"
        " b = Mul(a, a)"
        " y = If(c) <"
        "  then_branch = t () => (float[2,3] u) { d = Mul(a, b) e = Cast<to = 1>(d)"
        "    u = Add(x, e) },"
        "  else_branch = f () => (float[2,3] v) { d = Add(b, b) e = Cast<to = 1>(d)"
        "    v = Mul(x, e) }"
        " > }"
    )
    for condition in (True, False):
        result = optimizing.check(model, {"c": np.array(condition), **X})
    assert optimizing.ops(result) == {"If": 1}
    assert [len(graph) for graph in result.model.graph.subgraphs()] == [1, 1]
    assert optimizing.constants(result) == {}, "what only the branches used is gone"


def test_a_loop_body_is_folded_but_not_its_state() -> None:
    model = onnx_text.model(
        "g (int64 n) => (int64[1] y) <bool go = {1}, int64[1] one = {1}> {"
        " y = Loop(n, go, one) <body = b (int64 i, bool c, int64[1] s)"
        "   => (bool d, int64[1] t) { d = Identity(c) two = Add(one, one) t = Mul(s, two) }>"
        " }"
    )
    result = optimizing.check(model, {"n": np.array(5)})
    (body,) = result.model.graph.subgraphs()
    assert sorted(node.op_type for node in body) == ["Identity", "Mul"]


def test_dimensions_that_are_known_fold_away_with_all_that_hangs_on_them() -> None:
    """Each layer reads its shape off the one before: one sweep, however many there are."""
    layers = 40
    body = " ".join(
        f"s{i} = Shape(x{i}) b{i} = Gather(s{i}, zero) n{i} = Gather(s{i}, one)"
        f" h{i} = Div(n{i}, two) p{i} = Concat<axis = 0>(b{i}, h{i}, two)"
        f" r{i} = Reshape(x{i}, p{i}) t{i} = Relu(r{i}) q{i} = Concat<axis = 0>(b{i}, minus)"
        f" x{i + 1} = Reshape(t{i}, q{i})"
        for i in range(layers)
    ).replace("x0", "x")
    model = onnx_text.model(
        f"g (float[batch,8] x) => (float[N,M] x{layers}) <int64[1] zero = {{0}},"
        f" int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] minus = {{-1}}> {{ {body} }}"
    )
    result = optimizing.optimized(model, "fold-constants", batch=2)
    assert optimizing.ops(result) == {"Reshape": 2 * layers, "Relu": layers}
    output = result.model.graph.outputs[0]
    assert output.shape is not None
    assert output.shape.is_static()


def test_what_would_blow_up_the_model_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "MAX_GROWTH", 1 << 20)
    body = (
        "{{ a = Expand(f, s) b = ConstantOfShape(s) c = Tile(f, r) d = Where(t, f, a)"
        " y = Concat<axis = 0>(a, b, c, d) }}"
    )
    text = (
        "g () => (float[N,M] y) <float[1,1] f = {{2}}, int64[2] s = {{1,{0}}},"
        " int64[2] r = {{1,{0}}}, bool[1,1] t = {{1}}> " + body
    )
    small = optimizing.check(onnx_text.model(text.format(64)), {}, "fold-constants")
    assert optimizing.ops(small) == {"Identity": 1}
    large = optimizing.check(onnx_text.model(text.format(1 << 19)), {}, "fold-constants")
    assert optimizing.ops(large) == {
        "Expand": 1, "ConstantOfShape": 1, "Tile": 1, "Where": 1, "Concat": 1
    }  # fmt: skip


def test_many_of_a_fill_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fill of 800 KB is stored in four bytes: joining two of them makes 1.6 MB of nothing."""
    monkeypatch.setattr(operation, "MAX_GROWTH", 1 << 20)
    model = onnx_text.model(
        "g () => (float[N] y) <int64[1] s = {200000}>"
        " { a = ConstantOfShape(s) y = Concat<axis = 0>(a, a) }"
    )
    assert optimizing.ops(optimizing.optimized(model, "fold-constants")) == {"Concat": 1}


def chained(count: int, op: str) -> ModelProto:
    """A weight of 256 KiB that goes through so many nodes: `op` with `{0}` for what it is given."""
    weight = np.random.default_rng(0).random((256, 256), np.float32)
    nodes = " ".join(f"c{i + 1} = {op.format(f'c{i}')}" for i in range(count))
    model = onnx_text.proto(f"g (float x) => (float[N,M] y) {{ {nodes} y = Add(c{count}, x) }}")
    model.graph.initializer.append(numpy_helper.from_array(weight, "c0"))
    return model


@pytest.mark.parametrize(
    ("op", "folding", "left"),
    [
        ("Mul({0}, {0})", "fold-float-arithmetic", 7),
        ("Transpose({0})", "fold-constants", 3),  # each second one is the weight as it was
    ],
)
def test_all_that_is_made_has_a_bound(
    op: str, folding: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "MOST", 1 << 20)
    monkeypatch.setattr(scratch, "TIMES", 0)
    result = optimizing.optimized(chained(12, op), folding)
    assert optimizing.ops(result) == {op.partition("(")[0]: left, "Add": 1}


def test_a_size_that_onnx_runtime_takes_when_it_is_computed_only_stays_computed() -> None:
    model = onnx_text.model(
        "g (string[4,1] x) => (string[N,M] y) <int64[2] m = {-1,1}>"
        " { s = Neg(m) y = Expand(x, s) }",
        infer=False,
    )
    result = optimizing.check(model, {"x": np.array([["a"]] * 4, object)})
    assert optimizing.ops(result) == {"Neg": 1, "Expand": 1}


def test_a_graph_that_would_fail_fails_where_it_is_run() -> None:
    model = onnx_text.model(
        "g () => (int64[N] y) <int64[3] a = {1,2,3}, int64[1] s = {2}> { y = Reshape(a, s) }",
        infer=False,
    )
    result = optimizing.optimized(model, "basic")
    assert optimizing.ops(result) == {"Reshape": 1}


@pytest.mark.parametrize("dtype", [TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN])
def test_types_that_numpy_does_not_have_are_moved(dtype: int) -> None:
    name = "Transpose"
    raw = bytes(range(24)) * (2 if dtype == TensorProto.BFLOAT16 else 1)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(name, ["w"], ["y"])],
        "g",
        [],
        [value("y", dtype, [4, 6])],
        [helper.make_tensor("w", dtype, [6, 4], raw, raw=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    result = optimizing.optimized(model, "basic")
    (tensor,) = (v.const_value for v in result.model.graph.initializers.values())
    assert tensor is not None
    bits = np.frombuffer(raw, np.uint16 if dtype == TensorProto.BFLOAT16 else np.uint8)
    assert tensor.tobytes() == np.ascontiguousarray(bits.reshape(6, 4).T).tobytes()
