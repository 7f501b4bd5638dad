"""Weights that passes make: arrays of any strides, and the files they go to."""

from __future__ import annotations

from pathlib import Path

import blake3
import numpy as np
import onnx_ir as ir
import pytest

from epctx.errors import StorageError
from epctx.files.digest import CHUNK
from epctx.graph.passes import scratch
from epctx.graph.passes import scratch as scratches
from epctx.graph.passes.scratch import FOLDED, Array, Scratch
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.tensors import MappedTensor

SHAPES = [(), (0,), (7,), (3, 0, 2), (5, 1, 3), (1 << 23,), (3, 5, 1 << 20), (1 << 21, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_cover_a_shape_in_order_and_are_small(shape: tuple[int, ...]) -> None:
    position = 0
    last = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    for index in scratch.blocks(shape, 4):
        part = last[index]
        assert 0 < part.nbytes <= CHUNK
        assert part.reshape(-1)[0] == position
        assert part.reshape(-1)[-1] == position + part.size - 1
        position += part.size
    assert position == last.size


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(2, 0, 1),
        np.broadcast_to(np.float32(-0.0), (3, 5)),
        np.arange(12, dtype=np.uint8)[::-2],
        np.array(7, np.int64),
        np.zeros((0, 3), np.float64),
        np.arange(3 * (CHUNK // 8), dtype=np.int32).reshape(3, -1).T,
    ],
    ids=lambda array: f"{array.shape}",
)
def test_content_is_what_tobytes_is(array: scratch.Array) -> None:
    pieces = list(scratch.content_chunks(array))
    assert b"".join(pieces) == array.tobytes()
    assert all(len(piece) <= CHUNK for piece in pieces)


def test_a_fill_is_one_element() -> None:
    fill = np.broadcast_to(np.float32(2), (4, 1, 3))
    assert scratch.is_fill(fill)
    assert scratch.content_bytes(fill) == 48
    assert scratch.held_bytes(fill) == 4
    assert scratch.held_bytes(np.broadcast_to(np.arange(3, dtype=np.int8), (9, 3))) == 3
    assert scratch.held_bytes(np.arange(10, dtype=np.int16)[::-2]) == 10
    assert scratch.is_fill(np.array(5))
    assert not scratch.is_fill(np.zeros((2, 2)))
    assert not scratch.is_fill(np.broadcast_to(np.arange(3), (2, 3)))
    assert not scratch.is_fill(np.zeros((0, 3)))


FLOAT = ir.DataType.FLOAT
BIG = (128, 256)
"""A float32 tensor of 128 KiB: more than stays in memory."""


def numbers(shape: tuple[int, ...] = BIG, seed: int = 0) -> Array:
    return np.random.default_rng(seed).random(shape, np.float32)


def model(*tensors: ir.TensorProtocol) -> ir.Model:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    for index, tensor in enumerate(tensors):
        graph.register_initializer(ir.Value(name=f"w{index}", const_value=tensor))
        tensor.name = f"w{index}"
    return ir.Model(graph, ir_version=10)


def settled(folder: Path, place: Scratch, *tensors: ir.TensorProtocol) -> list[MappedTensor]:
    holder = model(*tensors)
    place.write_out(holder)
    found = [value.const_value for value in holder.graph.initializers.values()]
    assert all(isinstance(tensor, MappedTensor) for tensor in found)
    return [tensor for tensor in found if isinstance(tensor, MappedTensor)]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def source(tmp_path: Path) -> MappedTensor:
    path = tmp_path / "source.data"
    path.write_bytes(b"head" * 1024 + numbers().tobytes())
    return MappedTensor(DataFile.open(path), 4096, FLOAT, shape=ir.Shape(BIG), name="w")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "scratch"
    made.mkdir()
    return made


def test_a_reshaped_or_cut_weight_of_a_source_is_a_reference_to_the_source(
    folder: Path, source: MappedTensor
) -> None:
    place = Scratch(folder)
    place.know(source.file)
    array = source.numpy()
    turned = place.tensor(array.reshape(256, 128), FLOAT, "reshaped")
    lower = place.tensor(array[64:], FLOAT, "lower half")
    for tensor, offset, wanted in (
        (turned, 4096, numbers().reshape(256, 128)),
        (lower, 4096 + array.nbytes // 2, numbers()[64:]),
    ):
        assert isinstance(tensor, MappedTensor)
        assert tensor.file is source.file
        assert tensor.start == offset
        np.testing.assert_array_equal(tensor.numpy(), wanted)
    place.write_out(model(turned, lower))
    assert files(folder) == []


def test_views_are_written_at_the_end_with_their_digests(
    folder: Path, source: MappedTensor
) -> None:
    place = Scratch(folder)
    place.know(source.file)
    turned = place.tensor(source.numpy().T, FLOAT, "turned")
    fill = place.tensor(np.broadcast_to(np.float32(2.5), BIG), FLOAT, "fill")
    assert files(folder) == []
    first, second = settled(folder, place, turned, fill)
    assert files(folder) == [FOLDED]
    assert first.file is second.file
    assert first.start % 4096 == second.start % 4096 == 0
    np.testing.assert_array_equal(first.numpy(), numbers().T)
    np.testing.assert_array_equal(second.numpy(), np.full(BIG, 2.5, np.float32))
    for tensor in (first, second):
        assert tensor.digest().hex == blake3.blake3(tensor.tobytes()).hexdigest()
    content = (folder / FOLDED).read_bytes()
    assert first.file.digest().hex == blake3.blake3(content).hexdigest()


def test_equal_fills_are_written_once(folder: Path) -> None:
    place = Scratch(folder)
    shapes = [(128, 256), (256, 128), (128, 257)]
    fills = [place.tensor(np.broadcast_to(np.float32(2.5), s), FLOAT, "f") for s in shapes]
    one, same, other = settled(folder, place, *fills)
    assert one.start == same.start != other.start
    assert same.numpy().shape == (256, 128)


def test_what_is_in_memory_is_written_when_there_is_too_much_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratches, "HELD", 300_000)
    place = Scratch(folder)
    arrays = [numbers(seed=seed) for seed in range(5)]
    held = [place.tensor(array.copy(), FLOAT, "held") for array in arrays]
    assert files(folder) == ["laid-out-0.data"]
    for tensor, array in zip(held, arrays, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    mapped = settled(folder, place, *held)
    assert files(folder) == [FOLDED, "laid-out-0.data"]
    for tensor, array in zip(mapped, arrays, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    assert [tensor.name for tensor in mapped] == [f"w{i}" for i in range(5)]


def test_a_file_that_nobody_uses_is_deleted_and_one_used_in_part_written_anew(folder: Path) -> None:
    place = Scratch(folder)
    arrays = [numbers(seed=seed) for seed in range(3)]
    laid = [place.lay_out(BIG, [a.reshape(-1).view(np.uint8).data], a) for a in arrays]
    assert files(folder) == [f"laid-out-{i}.data" for i in range(3)]
    kept = place.tensor(laid[1], FLOAT, "kept")
    (mapped,) = settled(folder, place, kept)
    assert files(folder) == ["laid-out-1.data"]
    np.testing.assert_array_equal(mapped.numpy(), arrays[1])


def test_dead_parts_of_a_file_are_not_carried_along(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratches, "HELD", 200_000)
    place = Scratch(folder)
    first = place.tensor(numbers(seed=1), FLOAT, "first")
    second = place.tensor(numbers(seed=2), FLOAT, "second")
    assert files(folder) == ["laid-out-0.data"]
    assert first.nbytes == second.nbytes
    (mapped,) = settled(folder, place, second)
    assert files(folder) == [FOLDED]
    assert (folder / FOLDED).stat().st_size == second.nbytes
    np.testing.assert_array_equal(mapped.numpy(), numbers(seed=2))


def test_the_more_there_is_the_more_may_be_made_of_it(
    folder: Path, source: MappedTensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratches, "MOST", 0)
    place = Scratch(folder)
    place.know(source.file)
    turned = source.numpy().T
    for _ in range(scratches.TIMES):
        place.tensor(turned, FLOAT, "turned")
        place.tensor(source.numpy(), FLOAT, "a part of a file: nothing is made")
        assert not place.is_full
    laid = place.lay_out(BIG, [numbers().reshape(-1).view(np.uint8).data], numbers())
    assert place.is_full
    assert isinstance(place.tensor(laid, FLOAT, "laid out"), MappedTensor)
    assert place.is_full, "what was made is nothing that was there"


def test_tensors_of_elements_under_a_byte_are_written_packed(folder: Path) -> None:
    import ml_dtypes

    values = (np.arange(1 << 18) % 15 - 7).astype(ml_dtypes.int4)
    place = Scratch(folder)
    (mapped,) = settled(folder, place, ir.Tensor(values, ir.DataType.INT4, name="w"))
    assert mapped.nbytes == 1 << 17
    np.testing.assert_array_equal(mapped.numpy(), values)


def test_a_disk_that_refuses_is_an_error_that_says_so(folder: Path) -> None:
    (folder / FOLDED).mkdir()
    place = Scratch(folder)
    fill = place.tensor(np.broadcast_to(np.float32(2.5), BIG), FLOAT, "fill")
    with pytest.raises(StorageError) as raised:
        place.write_out(model(fill))
    assert raised.value.where == str(folder / FOLDED)
    assert "`optimize: none`" in str(raised.value)
