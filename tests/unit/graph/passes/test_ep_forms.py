"""Forms of norms and gathers that more EPs take."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from epctx.graph.serde import canonical
from tests.kit import onnx_text, optimizing

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


PASS = "slice-gathers"
Indices = npt.NDArray[Any]
TYPES: dict[str, type[np.generic]] = {
    "bool": np.bool_,
    "float": np.float32,
    "int32": np.int32,
    "int64": np.int64,
}


def gather(
    op: str, kind: str, shape: tuple[int, ...], indices: Indices, **attributes: int
) -> ir.Model:
    """A model of one gather by constant indices, and a node that uses what it gives."""
    dims, sizes = ",".join(map(str, shape)), ",".join(map(str, indices.shape))
    rank = len(_result(op, shape, indices, **attributes))
    given = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    return onnx_text.model(
        f"g ({kind}[{dims}] x) => ({kind}[{','.join('abcdefghijkl'[:rank])}] y)"
        f" <int64[{sizes}] k = {{{','.join(map(str, indices.reshape(-1)))}}}>"
        f" {{ a = {op}{f'<{given}>' if given else ''}(x, k) y = Transpose(a) }}"
    )


def _result(
    op: str, shape: tuple[int, ...], indices: Indices, axis: int = 0, batch_dims: int = 0
) -> tuple[int, ...]:
    if op == "Gather":
        return (*shape[1:], *indices.shape)
    return (*indices.shape[:-1], *shape[batch_dims + indices.shape[-1] :])


def feeds(kind: str, shape: tuple[int, ...]) -> dict[str, Indices]:
    values = np.random.default_rng(0).integers(0, 1 + (kind == "bool") + 100, shape)
    return {"x": (values % 2 if kind == "bool" else values - 50).astype(TYPES[kind])}


def mask(batch: int, length: int) -> Indices:
    """The indices by which torch's exporter reads a mask: of a row, every place for each place."""
    rows = np.arange(batch)[:, None, None, None]
    columns = np.arange(length)[None, None, None, :]
    return np.stack(np.broadcast_arrays(rows, columns, np.zeros((1, 1, length, 1), int))[:2], -1)


def ops_after(model: ir.Model, kind: str, shape: tuple[int, ...], *passes: str) -> dict[str, int]:
    return dict(optimizing.ops(optimizing.check(model, feeds(kind, shape), *passes)))


@pytest.mark.parametrize("kind", TYPES)
def test_a_mask_is_repeated_instead_of_gathered(kind: str) -> None:
    """QNN 2.7.0 takes these ops of booleans; the index of the gather is gone."""
    model = gather("GatherND", kind, (2, 5), mask(2, 5))
    found = ops_after(model, kind, (2, 5), PASS, "basic")
    assert found == {"Reshape": 1, "Tile": 1, "Transpose": 1}


def test_after_basic_which_makes_a_gather_of_it_too() -> None:
    model = gather("GatherND", "bool", (2, 5), mask(2, 5))
    assert ops_after(model, "bool", (2, 5), "basic", PASS, "basic") == {
        "Reshape": 1, "Tile": 1, "Transpose": 1,
    }  # fmt: skip
    assert "Gather" in ops_after(model, "bool", (2, 5), "basic")


def test_batches_and_irregular_indices_become_a_gather() -> None:
    indices = np.array([[2, 0], [1, -1], [0, 0]])[..., None]
    model = gather("GatherND", "float", (3, 4), indices, batch_dims=1)
    found = ops_after(model, "float", (3, 4), PASS)
    assert "GatherND" not in found and found["Gather"] == 1


@pytest.mark.parametrize(
    ("op", "indices"), [("GatherND", np.array([[1], [1]])), ("Gather", np.array([1, 1]))]
)
def test_strings_are_let_alone(op: str, indices: Indices) -> None:
    """Of them ONNX Runtime 1.31.1's Gather copies the first of each slice, its GatherND all."""
    model = gather(op, "string", (2, 3), indices)
    result = optimizing.check(model, {"x": np.array([["a", "b", "c"]] * 2, object)}, PASS, "basic")
    assert optimizing.ops(result) == {op: 1, "Transpose": 1}


@pytest.mark.parametrize(
    "indices", [[2, 1, 0], [0, 1, 3], [0]], ids=["backwards", "uneven", "a single one"]
)
def test_other_gathers_stay(indices: list[int]) -> None:
    model = gather("Gather", "float", (4, 2), np.array(indices))
    assert ops_after(model, "float", (4, 2), PASS) == {"Gather": 1, "Transpose": 1}


def test_a_type_that_tile_may_not_have_is_not_repeated() -> None:
    model = onnx_text.model(
        "g (uint16[4] x) => (uint16[2,4] y) <int64[2,4] k = {0,1,2,3,0,1,2,3}>"
        " { a = Gather(x, k) y = Identity(a) }"
    )
    result = optimizing.check(model, {"x": np.arange(4, dtype=np.uint16)}, PASS)
    assert optimizing.ops(result)["Gather"] == 1


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str, tuple[int, ...], Indices, dict[str, int]]:
    """Gathers of all ranks: random indices, even ones, repeated ones; some count from the end."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    kind = draw(st.sampled_from(sorted(TYPES)))
    repeat = draw(st.lists(st.integers(1, 3), min_size=0, max_size=2))
    if draw(st.booleans()):
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        start, step = draw(st.integers(0, shape[axis] - 1)), draw(st.integers(1, 3))
        even = np.arange(start, shape[axis], step)
        some = draw(st.lists(st.integers(-shape[axis], shape[axis] - 1), min_size=1, max_size=5))
        own = draw(st.sampled_from([even, np.array(some)]))
        return "Gather", kind, shape, np.tile(own, (*repeat, 1)), {"axis": axis}
    batches = draw(st.integers(0, len(shape) - 1))
    depth = draw(st.integers(1, len(shape) - batches))
    bounds = shape[batches : batches + depth]
    rows = np.stack([index.reshape(-1) for index in np.indices(bounds)], -1)
    chosen = draw(st.sampled_from([rows, rows[::2], rows[::-1], rows - np.array(bounds)]))
    once = np.tile(chosen, (*shape[:batches], *repeat, 1, 1))
    return "GatherND", kind, shape, once, {"batch_dims": batches}


@settings(max_examples=120, deadline=None)
@given(case=cases())
def test_any_gather_gives_the_same_bits(
    case: tuple[str, str, tuple[int, ...], Indices, dict[str, int]],
) -> None:
    op, kind, shape, indices, attributes = case
    model = gather(op, kind, shape, indices, **attributes)
    assert "GatherND" not in ops_after(model, kind, shape, PASS)
