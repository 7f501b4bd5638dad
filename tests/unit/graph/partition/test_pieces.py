"""Cuts of models into pieces."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ManifestError, ModelError
from epctx.graph.model import CutPlan, CutPoint, Partition
from epctx.graph.partition import pieces, surgery
from epctx.graph.partition.pieces import Blocks, balance, fewest
from epctx.graph.serde import types
from tests.kit.onnx_text import model, names, reorder, run

SHARED: Blocks = [{"a": 5}, {"b": 5}, {"a": 5}, {"a": 5, "c": 1}]


def even(count: int) -> Blocks:
    return [{place: 1} for place in range(count)]


def test_an_item_counts_once_in_a_run() -> None:
    assert [fewest(SHARED, limit) for limit in (5, 6, 10, 11)] == [None, 3, 2, 1]
    assert balance(SHARED, [0] * 4, 2) == [2]


def test_one_run_has_no_cut() -> None:
    assert balance(SHARED, [0] * 4, 1) == []


def test_a_run_within_five_percent_of_the_smallest_may_save_tolls() -> None:
    tolls = [9] * 40
    assert balance(even(40), tolls, 2) == [20]
    tolls[19] = 1
    assert balance(even(40), tolls, 2) == [19]
    assert balance(even(40), tolls, 2, ceiling=20) == [20]
    tolls[18] = 0
    assert balance(even(40), tolls, 2) == [19], "two less are more than five percent"


def test_blocks_without_items_are_never_left_out() -> None:
    assert balance([{"a": 1}, {}, {}], [0, 3, 4], 3) == [1, 2]
    assert balance([{}, {"a": 1}, {}], [0, 3, 4], 2) == [1]


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


def test_a_model_of_layers_is_cut_between_layers() -> None:
    source = llm()
    plan = choose(source, count=4)
    assert after(plan) == ["h9", "h19", "h29"]
    assert {(cut.values, cut.bytes, cut.recomputed) for cut in plan.cuts} == {
        ((name,), 4 * 8 * 4, ("mask",)) for name in after(plan)
    }
    assert plan.memory == (1000 + 10 * 256,) * 4
    assert plan.cuts[0].why.startswith("the fewest bytes cross")
    partitions = pieces.divide(source, plan)
    assert [len(partition.nodes) for partition in partitions] == [52] * 4
    assert [v.name for v in partitions[1].inputs] == [
        "positions", *(f"past{n}" for n in range(10, 20)), "h9"
    ]  # fmt: skip
    assert [v.name for v in partitions[1].outputs] == [
        *(f"present{n}" for n in range(10, 20)), "h19"
    ]  # fmt: skip
    assert {"negative.piece2", "mask.piece2"} <= set(names(partitions[1].nodes))
    clone = partitions[1].nodes[names(partitions[1].nodes).index("mask.piece2")].outputs[0]
    assert (clone.name, clone.dtype, clone.shape) == (
        "mask.piece2", ir.DataType.FLOAT, ir.Shape([4, 1])
    )  # fmt: skip


def test_the_order_of_the_file_is_no_matter() -> None:
    plain, shuffled = llm(), llm()
    reorder(shuffled, seed=1)
    assert names(list(plain.graph)) != names(list(shuffled.graph))
    assert choose(shuffled, count=7) == choose(plain, count=7)


def test_pieces_compute_what_the_model_does() -> None:
    source = llm(layers=40)
    values = feeds(source)
    wanted = run(source, values)
    partitions = pieces.divide(source, choose(source, count=5))
    made = chained(source, partitions, values)
    for value, right in zip(source.graph.outputs, wanted, strict=True):
        np.testing.assert_array_equal(made[str(value.name)], right)


def test_in_a_small_model_a_mask_crosses() -> None:
    plan = choose(llm(layers=4), count=2)
    assert [cut.values for cut in plan.cuts] == [("mask", "h1")]
    assert plan.cuts[0].recomputed == ()


def test_one_piece_is_the_whole_model() -> None:
    source = llm(layers=2)
    plan = choose(source, count=1)
    assert plan.cuts == () and plan.memory == (1000 + 2 * 256,)
    (partition,) = pieces.divide(source, plan)
    assert set(partition.nodes) == set(source.graph)


def test_the_limit_of_memory_takes_as_few_pieces_as_fit() -> None:
    plan = choose(llm(), max_memory=1000 + 14 * 256)
    assert len(plan.memory) == 3 and max(plan.memory) <= 1000 + 14 * 256
    assert {cut.after[0] for cut in plan.cuts} == {"h"}


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


def test_without_weights_pieces_have_equally_many_nodes() -> None:
    source = llm(layers=16)
    plan = pieces.choose({"m": source}, base=5, cost=lambda value: 0, count=4)["m"]
    assert after(plan) == ["h3", "h7", "h11"]
    assert plan.memory == (5,) * 4


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
        "no node makes it, or one in a body of If, Loop or Scan, which is never cut"
    )


# --- named places ---


@pytest.mark.parametrize(
    ("at", "what", "why", "remedy"),
    [
        (["h9x"], 'after "h9x"', "no node makes it", 'did you mean "h9"?'),
        (["x"], 'after "x"', "no node makes it", ""),
        (["w0"], 'after "w0"', "no node makes it", ""),
        (["h1", "h1"], '"h1" and "h1" are the same place', None, "remove one of them"),
        (["h39"], 'after "h39"', "a piece would have no nodes but", "cut after"),
        (["mask"], 'after "mask"', "a piece would have no nodes but", "cut after"),
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
    assert caught.value.why == 'prefill uses the weight "w0", verify has none of that content'
    for wanted in ({"at": ["h1"]}, {"count": 2}):
        with pytest.raises(ModelError, match="cannot be cut like prefill"):
            shared(*sources, **wanted)
    with pytest.raises(ModelError, match="no place has the same large weights before it"):
        shared(sources[0], llm(4, width=160, seeds={0: 3, 1: 2, 2: 1, 3: 0}), count=12)
    with pytest.raises(ManifestError, match="30 pieces are more"):
        shared(*sources, count=30)


# --- effort ---


def calls(nodes: int) -> int:
    """Count the calls, of C functions too, that a chain of nodes takes."""
    body = " ".join(f"v{n} = Neg(v{n - 1})" for n in range(1, nodes))
    source = model(f"g (float[1] v0) => (float[1] v{nodes - 1}) {{ {body} }}")
    count = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        pieces.divide(source, choose(source, count=8))
    finally:
        sys.setprofile(None)
    return count


def test_the_effort_grows_with_the_model_not_faster() -> None:
    assert calls(10_000) < 13 * calls(1_000)
