"""Gathers by constant indices: the same bits by plainer ops, and no others touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctx.graph.passes import registry
from tests.kit import onnx_text, optimizing

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


def test_every_second_place_is_a_slice() -> None:
    model = gather("Gather", "int64", (3, 9), np.array([[1, 3], [5, -2]]), axis=-1)
    assert ops_after(model, "int64", (3, 9), PASS) == {"Slice": 1, "Reshape": 1, "Transpose": 1}


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


def test_no_level_runs_it() -> None:
    assert all(PASS not in registry.LEVELS[level] for level in registry.LEVELS)


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
