"""Cuts of models into pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ManifestError, ModelError
from epctx.graph.model import CutPlan, CutPoint, Partition
from epctx.graph.partition import pieces, surgery
from epctx.graph.partition.pieces import Blocks, balance
from epctx.graph.serde import types
from tests.kit.onnx_text import model, names, run


def even(count: int) -> Blocks:
    return [{place: 1} for place in range(count)]


def test_a_run_within_five_percent_of_the_smallest_may_save_tolls() -> None:
    tolls = [9] * 40
    assert balance(even(40), tolls, 2) == [20]
    tolls[19] = 1
    assert balance(even(40), tolls, 2) == [19]
    assert balance(even(40), tolls, 2, ceiling=20) == [20]
    tolls[18] = 0
    assert balance(even(40), tolls, 2) == [19], "two less are more than five percent"


def test_a_run_next_to_nothing_is_not_cut_off_to_save_tolls() -> None:
    layers: Blocks = [{"scale": 1}, {1: 90}, {2: 90}, {3: 90}, {4: 90}, {5: 90}]
    assert balance(layers, [0, 1, 5, 5, 5, 5], 4) == [2, 3, 4]
    assert balance(layers, [0, 1, 5, 5, 5, 5], 6) == [1, 2, 3, 4, 5], "there are not enough others"


X = np.array([1.0, -2.0], np.float32)


def nbytes(value: ir.Value) -> int:
    assert value.const_value is not None
    return value.const_value.nbytes


def choose(source: ir.Model, **wanted: Any) -> CutPlan:
    return pieces.choose({"m": source}, base=1000, cost=nbytes, **wanted)["m"]


def cut_at(source: ir.Model, *at: str) -> tuple[CutPoint, ...]:
    return choose(source, at=at).cuts


def after(plan: CutPlan) -> list[str]:
    return [cut.after for cut in plan.cuts]


def refusal(source: ir.Model, **wanted: Any) -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        choose(source, **wanted)
    return caught.value


def chained(source: ir.Model, partitions: Iterable[Partition], feeds: dict[str, np.ndarray]) -> Any:
    """The values that pieces compute one after another."""
    values = dict(feeds)
    for partition in partitions:
        given = {str(v.name): values[str(v.name)] for v in partition.inputs}
        outputs = run(surgery.extract(source, partition), given)
        values |= zip([str(v.name) for v in partition.outputs], outputs, strict=True)
    return values


def llm(
    layers: int = 40,
    *,
    width: int = 8,
    tokens: int = 4,
    prefix: str = "",
    seeds: dict[int, int] | None = None,
) -> ir.Model:
    """Layers with a KV cache, a residual and one mask for all; the mask is of two nodes."""
    info = helper.make_tensor_value_info
    full, column = [tokens, width], [tokens, 1]
    inputs = [info("x", TensorProto.FLOAT, full), info("positions", TensorProto.FLOAT, column)]
    outputs, weights = [], []
    nodes = [
        helper.make_node("Neg", ["positions"], ["negative"], name="negative"),
        helper.make_node("Sigmoid", ["negative"], ["mask"], name="mask"),
    ]
    hidden = "x"
    for layer in range(layers):
        own = f"{prefix}{layer}"
        random = np.random.default_rng((seeds or {}).get(layer, layer))
        array = random.normal(size=(width, width)).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{layer}"))
        inputs.append(info(f"past{layer}", TensorProto.FLOAT, full))
        outputs.append(info(f"present{layer}", TensorProto.FLOAT, full))
        for op, uses, made in (
            ("MatMul", [hidden, f"w{layer}"], f"q{own}"),
            ("Add", [hidden, f"past{layer}"], f"present{layer}"),
            ("Mul", [f"present{layer}", "mask"], f"s{own}"),
            ("Mul", [f"q{own}", f"s{own}"], f"t{own}"),
            ("Add", [f"t{own}", hidden], f"h{own}"),
        ):
            nodes.append(helper.make_node(op, uses, [made], name=made))
        hidden = f"h{own}"
    outputs.append(info(hidden, TensorProto.FLOAT, full))
    graph = helper.make_graph(nodes, "llm", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 21)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return types.from_proto(onnx.shape_inference.infer_shapes(proto))


def feeds(source: ir.Model) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        str(value.name): random.normal(size=value.shape.numpy()).astype(np.float32)
        for value in source.graph.inputs
        if value.shape is not None
    }


# --- layers ---


def test_a_limit_too_small_is_refused_with_the_smallest_that_is_not() -> None:
    error = refusal(llm(), max_memory=1255)
    assert error.where == "partition.pieces.max_memory"
    assert error.remedy == "write at least 1256B"
    assert error.why and "cannot be cut and takes 1.3 kB" in error.why
    assert len(choose(llm(), max_memory=1256).memory) == 40


def test_more_pieces_than_places_are_refused() -> None:
    source = model("g (float[2] x) => (float[2] y) { a = Relu(x) b = Neg(a) y = Abs(b) }")
    error = refusal(source, count=4)
    assert error.where == "partition.pieces.count"
    assert error.why == "places at which it can be cut: 2"
    assert error.remedy == "write a count of at most 3"
    assert after(choose(source, count=3)) == ["a", "b"]


def test_tied_weights_count_in_every_piece_that_uses_them() -> None:
    source = model(
        "g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}, float[2] v = {3.0, 4.0}>"
        "{ a = Add(x, w) b = Add(a, v) y = Mul(b, w) }"
    )
    assert choose(source, at=["a"]).memory == (1008, 1016)
    assert choose(source, at=["b"]).memory == (1016, 1008)


def test_skips_of_a_u_net_cross_where_the_cut_is() -> None:
    source = model("""
        g (float[8] x) => (float[8] y)
            <int64[1] half = {0}, int64[1] four = {4}, int64[1] two = {2}> {
            d0 = Relu(x)
            p0 = Slice(d0, half, four)
            d1 = Relu(p0)
            p1 = Slice(d1, half, two)
            d2 = Relu(p1)
            u1 = Concat <axis = 0> (d2, p1)
            j1 = Add(u1, d1)
            u0 = Concat <axis = 0> (j1, p0)
            y = Add(u0, d0)
        }""")
    (cut,) = cut_at(source, "d2")
    assert cut.values == ("d0", "p0", "d1", "p1", "d2") and cut.bytes == 32 + 16 + 16 + 8 + 8
    (cut,) = choose(source, count=2).cuts
    assert len(pieces.divide(source, CutPlan(cuts=(cut,), memory=(0, 0)))) == 2


# --- quantized ---

QDQ = """
g (float[2] x, bool c) => (float[2] y) <float s = {0.5}, int8 z = {1}> {
    [a] a = Relu(x)
    [aq] aq = QuantizeLinear(a, s, z)
    [ad] ad = DequantizeLinear(aq, s, z)
    [b] b = Neg(ad)
    [if] i = If(c) <
        then_branch = t () => (float[2] p) { [in] p = Add(ad, b) },
        else_branch = e () => (float[2] q) { [other] q = Identity(ad) }
    >
    [d] d = Abs(i)
    [y] y = Add(d, ad)
}"""


@pytest.mark.parametrize("flag", [True, False])
def test_the_integer_crosses_and_is_dequantized_in_each_piece(flag: bool) -> None:
    source = model(QDQ)
    values = {"x": X, "c": np.array(flag)}
    (wanted,) = run(source, values)
    plan = choose(source, at=["d", "b"])
    assert [cut.values for cut in plan.cuts] == [("aq", "b"), ("aq", "d")]
    assert [cut.recomputed for cut in plan.cuts] == [("ad",), ("ad",)]
    assert [cut.bytes for cut in plan.cuts] == [2 + 8, 2 + 8]
    partitions = pieces.divide(source, plan)
    onnx.checker.check_model(types.to_proto(source), full_check=True)
    assert [names(partition.nodes) for partition in partitions] == [
        ["a", "aq", "ad", "b"], ["ad.piece2", "if", "d"], ["ad.piece3", "y"]
    ]  # fmt: skip
    np.testing.assert_array_equal(chained(source, partitions, values)["y"], wanted)


def test_no_cut_lies_before_quantizing_or_behind_dequantizing() -> None:
    source = model(QDQ)
    error = refusal(source, at=["a"])
    assert error.where == "partition.pieces.at"
    assert error.why == '"a" would cross: "aq" is made by quantizing it'
    assert error.remedy == 'cut after "aq"'
    assert after(choose(source, at=["ad"])) == ["aq"]
    plan = choose(source, at=["aq"])
    first, second = pieces.divide(source, plan)
    assert names(first.nodes) == ["a", "aq"], "a node moves to the first piece that needs it"
    assert names(second.nodes) == ["ad", "b", "if", "d", "y"]


def test_a_name_that_is_in_use_gets_a_number() -> None:
    source = model(QDQ)
    value = source.graph.node("b").outputs[0]
    source.graph.node("b").name = value.name = "ad.piece2"
    _, second = pieces.divide(source, choose(source, at=["ad.piece2"]))
    assert second.nodes[0].name == second.nodes[0].outputs[0].name == "ad.piece2_1"


def test_where_the_integer_may_not_cross_the_float_does() -> None:
    source = model("""
        g (float[2] x) => (float[2] y) <float s = {0.5}> {
            a = Relu(x)
            aq = QuantizeLinear <output_dtype = 17> (a, s)
            ad = DequantizeLinear(aq, s)
            b = Neg(ad)
            y = Abs(b)
        }""")
    assert after(choose(source, count=4)) == ["a", "ad", "b"]
    error = refusal(source, at=["aq"])
    assert error.why == '"aq" would cross: type float8e4m3fn at the partition boundary'
    assert error.remedy == 'cut after "a" or "ad"'


def test_a_shared_weight_is_dequantized_where_it_is_used() -> None:
    source = model("""
        g (float[2] x) => (float[2] y) <int8[2] w = {3, 4}, float s = {0.5}> {
            [dq] d = DequantizeLinear(w, s)
            [a] a = Add(x, d)
            [y] y = Mul(a, d)
        }""")
    plan = choose(source, count=2)
    assert plan.cuts[0].values == ("a",) and plan.memory == (1006, 1006)
    first, second = pieces.divide(source, plan)
    assert names(first.nodes) == ["dq", "a"] and names(second.nodes) == ["dq.piece2", "y"]


# --- what may not cross ---


def test_a_sequence_does_not_cross() -> None:
    source = model("""
        g (float[4] x) => (float[4] y) <int64 one = {1}> {
            a = Relu(x)
            s = SplitToSequence(a)
            b = ConcatFromSequence <axis = 0> (s)
            y = Abs(b)
        }""")
    error = refusal(source, at=["s"])
    assert error.why == '"s" would cross: type sequence(float) at the partition boundary'
    assert after(choose(source, count=3)) == ["a", "b"]


def test_a_value_of_unknown_rank_does_not_cross() -> None:
    source = model("g (float[2] x) => (float[2] y) { a = Relu(x) y = Neg(a) }")
    source.graph[0].outputs[0].shape = None
    assert refusal(source, count=2).why == "places at which it can be cut: 0"


def test_what_a_body_captures_crosses() -> None:
    source = model("""
        g (float[2] x, int64 n) => (float[2] y) {
            h = Relu(x)
            k = Neg(x)
            y = Loop(n, , k) <body = b (int64 i, bool c, float[2] v) => (bool c2, float[2] o) {
                c2 = Identity(c)
                o = Add(v, h)
            }>
        }""")
    (cut,) = cut_at(source, "h", "k")[1:]
    assert cut.values == ("k", "h")
    assert refusal(source, at=["o"]).why == (
        "no node of the main graph makes it; bodies of If, Loop and Scan are never cut"
    )


# --- named places ---


@pytest.mark.parametrize(
    ("at", "what", "why", "remedy"),
    [
        (["h9x"], 'after "h9x"', "no node of the main graph makes it", 'did you mean "h9"?'),
        (["x"], 'after "x"', "no node of the main graph makes it", ""),
        (["w0"], 'after "w0"', "no node of the main graph makes it", ""),
        (["h1", "h1"], '"h1" and "h1" are the same place', None, "remove one of them"),
        (["h39"], 'after "h39"', "a piece would have only nodes that", "cut after"),
        (["mask"], 'after "mask"', "a piece would have only nodes that", "cut after"),
    ],
)
def test_places_that_cannot_be(at: list[str], what: str, why: str | None, remedy: str) -> None:
    error = refusal(llm(), at=at)
    assert error.where == "partition.pieces.at"
    assert what in error.what and remedy in error.remedy
    assert (error.why or "").startswith(why or "")


def test_named_places_need_no_order_and_say_so() -> None:
    plan = choose(llm(), at=["h20", "h3"])
    assert after(plan) == ["h3", "h20"]
    assert {cut.why for cut in plan.cuts} == {"partition.pieces.at"}
    assert plan.memory == (1000 + 4 * 256, 1000 + 17 * 256, 1000 + 19 * 256)


def test_two_values_of_one_place_are_refused() -> None:
    source = model("""
        g (float[4] x) => (float[2] y) {
            a, b = Split <axis = 0, num_outputs = 2> (x)
            y = Add(a, b)
        }
    """)
    assert refusal(source, at=["a", "b"]).what == '"a" and "b" are the same place'


# --- sharing groups ---


def shared(*sources: ir.Model, **wanted: Any) -> list[CutPlan]:
    labels = ("prefill", "decode", "verify")
    models = dict(zip(labels, sources, strict=False))
    return [*pieces.choose(models, base=0, cost=nbytes, **wanted).values()]


def test_models_that_share_are_cut_alike() -> None:
    one, two = shared(llm(8, width=160), llm(8, width=160, tokens=1), count=4)
    assert after(one) == after(two) == ["h1", "h3", "h5"]
    assert one.memory == two.memory
    assert [cut.bytes for cut in one.cuts] == [(4 * 160 + 4) * 4] * 3
    assert [cut.bytes for cut in two.cuts] == [(160 + 1) * 4] * 3


def test_names_may_differ() -> None:
    sources = llm(8, width=160), llm(8, width=160, prefix="other_"), llm(8, width=160)
    for wanted in ({"count": 4}, {"at": ["h1", "h3", "h5"]}):
        one, two, three = shared(*sources, **wanted)
        assert after(one) == after(three) == ["h1", "h3", "h5"]
        assert after(two) == ["hother_1", "hother_3", "hother_5"]


def test_weights_that_differ_are_named() -> None:
    sources = llm(4, width=160), llm(4, width=160), llm(4, width=160, seeds={0: 99})
    with pytest.raises(ModelError) as caught:
        shared(*sources, max_memory=3 * 160 * 160 * 4)
    assert caught.value.model == "verify"
    assert caught.value.what == "cannot be cut like prefill, with which it shares contexts"
    assert caught.value.why == 'prefill uses the weight "w0", verify has no weight of that content'
    for wanted in ({"at": ["h1"]}, {"count": 2}):
        with pytest.raises(ModelError, match="cannot be cut like prefill"):
            shared(*sources, **wanted)
    with pytest.raises(ModelError, match="the models share no place before which"):
        shared(sources[0], llm(4, width=160, seeds={0: 3, 1: 2, 2: 1, 3: 0}), count=12)
    with pytest.raises(ManifestError, match="30 pieces are more"):
        shared(*sources, count=30)


# --- effort ---
