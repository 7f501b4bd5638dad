"""Norms of sums taken apart, as ONNX Runtime computes them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.graph.serde import canonical
from tests.kit import optimizing

RNG = np.random.default_rng(0)
FEEDS = {name: RNG.standard_normal((2, 5, 64)).astype(np.float32) for name in ("x", "skip")}
WEIGHTS = {name: RNG.standard_normal(64).astype(np.float32) for name in ("scale", "beta", "bias")}


def model(op: str, weights: list[str], outputs: list[str]) -> onnx.ModelProto:
    node = helper.make_node(
        op, ["x", "skip", *weights], ["y", *outputs], domain="com.microsoft", epsilon=1e-5
    )
    shape = [2, 5, 64]
    made = [name for name in ("y", *outputs) if name]
    shapes = {"mean": [2, 5, 1]}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in FEEDS],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes.get(n, shape)) for n in made],
        [numpy_helper.from_array(WEIGHTS[name], name) for name in weights if name],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


CASES = {
    "simplified": ("SkipSimplifiedLayerNormalization", ["scale"], 2),
    "simplified, bias": ("SkipSimplifiedLayerNormalization", ["scale", "bias"], 3),
    "whole": ("SkipLayerNormalization", ["scale", "beta"], 2),
    "whole, bias": ("SkipLayerNormalization", ["scale", "beta", "bias"], 3),
    "whole, bias and no beta": ("SkipLayerNormalization", ["scale", "", "bias"], 3),
}


@pytest.mark.parametrize(("op", "weights", "nodes"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("outputs", [[], ["", "", "sum"]], ids=["norm", "norm and sum"])
def test_a_sum_and_a_norm_give_the_same(
    op: str, weights: list[str], nodes: int, outputs: list[str]
) -> None:
    source = model(op, weights, outputs)
    result = optimizing.optimized(source, "split-norms")
    kinds = optimizing.ops(result)
    del kinds["Identity"]  # one may stay before an output of the model
    assert kinds.total() == nodes and op not in kinds and kinds["Add"] == nodes - 1
    found = optimizing.run(canonical.serialize(result.model), FEEDS)
    expected = optimizing.run(source.SerializeToString(), FEEDS)
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() < 1e-5


def test_the_sum_and_the_norm_keep_their_names() -> None:
    source = model("SkipSimplifiedLayerNormalization", ["scale"], ["", "", "sum"])
    node = source.graph.node[0]
    node.output[0], node.output[3] = "normed", "total"
    for name, end in (("normed", "y"), ("total", "sum")):
        source.graph.node.append(helper.make_node("Neg", [name], [end]))
    made = optimizing.optimized(source, "split-norms").model.graph
    names = {node.op_type: node.outputs[0].name for node in made if node.op_type != "Neg"}
    assert names == {"Add": "total", "SimplifiedLayerNormalization": "normed"}


def test_statistics_that_are_used_keep_it_whole() -> None:
    source = model("SkipLayerNormalization", ["scale", "beta"], ["mean"])
    assert not optimizing.changes(optimizing.optimized(source, "split-norms"))


def test_it_is_in_no_level_and_levels_may_be_listed_with_it() -> None:
    source = model("SkipSimplifiedLayerNormalization", ["scale"], [])
    assert optimizing.ops(optimizing.optimized(source, "extended")) == {
        source.graph.node[0].op_type: 1
    }
    result = optimizing.optimized(source, "split-norms", "basic")
    assert "fold-constants" in {record.name for record in result.passes}
    assert optimizing.ops(result) == {"Add": 1, "SimplifiedLayerNormalization": 1}
