from __future__ import annotations

import errno
import hashlib
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import blake3
import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from epctx.errors import ModelError
from epctx.files.digest import CHUNK, HashingWriter
from epctx.graph.weights.mapped import DataFile, MappedTensor, content_digest


def _file(folder: Path, data: bytes, name: str = "weights.bin") -> DataFile:
    (folder / name).write_bytes(data)
    return DataFile.open(folder / name)


def _tensor(file: DataFile, offset: int, dtype: ir.DataType, *shape: int) -> MappedTensor:
    return MappedTensor(file, offset, dtype, shape=ir.Shape(shape), name="w")


def _blake3(data: bytes) -> str:
    return blake3.blake3(data).hexdigest()


def test_digests_of_a_file_and_its_parts_come_from_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = np.random.default_rng(0).bytes(2 * CHUNK + 12345)
    file = _file(tmp_path, data)
    end = len(data)
    ranges = [(0, 10), (5, CHUNK), (CHUNK - 1, 2), (CHUNK, CHUNK + 5), (0, end), (end, 0), (7, 0)]
    passes: list[tuple[int, ...]] = []
    chunks = DataFile.chunks

    def noted(self: DataFile, *range_: int) -> Iterator[memoryview]:
        passes.append(range_)
        return chunks(self, *range_)

    monkeypatch.setattr(DataFile, "chunks", noted)

    file.hash_parts(ranges)

    assert [each for each in passes if each != (end, 0)] == [()]
    assert file.digest().hex == _blake3(data)
    for offset, length in ranges:
        assert file.part_digest(offset, length).hex == _blake3(data[offset : offset + length])
    assert [each for each in passes if each != (end, 0)] == [()]
    assert file.sha1() == hashlib.sha1(data, usedforsecurity=False).hexdigest()


def test_a_part_is_digested_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _file(tmp_path, bytes(100))
    first = _tensor(file, 0, ir.DataType.UINT8, 40).digest()
    monkeypatch.setattr(DataFile, "chunks", None)
    assert _tensor(file, 0, ir.DataType.FLOAT, 10).digest() == first


def test_an_empty_file_has_a_digest_and_no_bytes(tmp_path: Path) -> None:
    file = _file(tmp_path, b"")
    assert file.size == 0
    assert file.digest().hex == _blake3(b"")
    assert bytes(file.view()) == b""
    assert _tensor(file, 0, ir.DataType.FLOAT, 0, 3).numpy().shape == (0, 3)


@pytest.mark.parametrize(("offset", "length"), [(-1, 4), (97, 4), (101, 0)])
def test_a_view_outside_the_file_is_refused(tmp_path: Path, offset: int, length: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        _file(tmp_path, bytes(100)).view(offset, length)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.int64).reshape(3, 2),
        np.array([True, False, True]),
        np.array(2.5, dtype=np.float64),
        np.array([1 + 2j], dtype=np.complex64),
        np.arange(6).astype(np.float16),
        np.arange(6).astype(ml_dtypes.bfloat16),
        np.arange(6).astype(ml_dtypes.float8_e4m3fn),
        np.arange(-4, 3).astype(ml_dtypes.int4),
        np.arange(7).astype(ml_dtypes.uint4),
        np.array([0.5, 1, 6], dtype=ml_dtypes.float4_e2m1fn),
        np.array([0, 1, 2, 3, 1], dtype=ml_dtypes.uint2),
    ],
    ids=lambda values: values.dtype.name,
)
def test_values_are_what_onnx_stores_at_any_offset(tmp_path: Path, values: np.ndarray) -> None:
    raw = ir.tensor(values).tobytes()
    file = _file(tmp_path, b"odd" + raw + b"rest")
    tensor = _tensor(file, 3, ir.tensor(values).dtype, *values.shape)

    assert tensor.nbytes == len(raw)
    assert tensor.numpy().dtype == values.dtype
    np.testing.assert_array_equal(tensor.numpy(), values)
    np.testing.assert_array_equal(np.asarray(tensor), values)
    assert tensor.tobytes() == raw
    assert b"".join(tensor.chunks()) == raw
    assert tensor.digest() == content_digest(ir.tensor(values))
    with (tmp_path / "out").open("wb") as stream:
        tensor.tofile(HashingWriter(stream))
    assert (tmp_path / "out").read_bytes() == raw


def test_numpy_is_a_read_only_view_of_the_map(tmp_path: Path) -> None:
    file = _file(tmp_path, np.arange(8, dtype=np.float32).tobytes())
    array = _tensor(file, 0, ir.DataType.FLOAT, 8).numpy()
    assert np.shares_memory(array, np.frombuffer(file.view(), np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_values_outlive_their_file_object(tmp_path: Path) -> None:
    array = _tensor(_file(tmp_path, bytes([7] * 64)), 0, ir.DataType.UINT8, 64).numpy()
    (tmp_path / "weights.bin").unlink()
    assert (array == 7).all()


def test_release_of_a_tensor_keeps_its_values(tmp_path: Path) -> None:
    tensor = _tensor(_file(tmp_path, bytes(16)), 0, ir.DataType.FLOAT, 4)
    tensor.release()
    assert (tensor.numpy() == 0).all()


def test_onnx_ir_writes_a_reference_that_it_resolves_itself(tmp_path: Path) -> None:
    file = _file(tmp_path, np.arange(8, dtype=np.float32).tobytes())
    proto = ir.serde.serialize_tensor(_tensor(file, 4, ir.DataType.FLOAT, 2))
    again = ir.serde.deserialize_tensor(proto, str(tmp_path))
    np.testing.assert_array_equal(again.numpy(), [1, 2])


def test_content_digest_of_strings_tells_their_borders() -> None:
    def digest(*elements: bytes) -> object:
        return content_digest(ir.StringTensor(elements, shape=ir.Shape([len(elements)])))

    assert digest(b"ab", b"c") != digest(b"a", b"bc")
    assert digest(b"ab", b"c") == digest(b"ab", b"c")


@pytest.mark.parametrize(
    "system", ["copies", "copies a part", "refuses", "has no call", "is another"]
)
def test_a_range_is_copied_whole_with_or_without_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    data = np.random.default_rng(0).bytes(CHUNK + 12345)
    file = _file(tmp_path, data)
    real = getattr(os, "copy_file_range", None)
    calls: list[int] = []

    def partly(source: int, target: int, count: int, offset: int) -> int:
        calls.append(count)
        if system == "refuses" or len(calls) > 2:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        assert real is not None
        done: int = real(source, target, min(count, 1000), offset)
        return done

    if system == "is another":
        monkeypatch.setattr(sys, "platform", "win32")
    elif system == "has no call":
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    elif system != "copies":
        monkeypatch.setattr(os, "copy_file_range", partly, raising=False)
    with (tmp_path / "copy").open("wb", buffering=0) as stream:
        stream.write(b"head")
        file.copy(stream, 5, CHUNK + 100)
    assert (tmp_path / "copy").read_bytes() == b"head" + data[5 : CHUNK + 105]
    assert bool(calls) == (system in ("copies a part", "refuses") and sys.platform == "linux")


def test_what_has_the_path_of_a_mapped_file_now_is_not_copied(tmp_path: Path) -> None:
    file = _file(tmp_path, b"checked")
    (tmp_path / "other").write_bytes(b"another")
    (tmp_path / "other").replace(tmp_path / "weights.bin")
    with (tmp_path / "copy").open("wb", buffering=0) as stream:
        file.copy(stream, 0, 7)
    assert (tmp_path / "copy").read_bytes() == b"checked"


def test_a_file_that_is_written_to_has_changed(tmp_path: Path) -> None:
    file = _file(tmp_path, bytes(10))
    assert not file.changed()
    (tmp_path / "weights.bin").write_bytes(bytes(11))
    assert file.changed()
    (tmp_path / "weights.bin").unlink()
    assert file.changed()


def test_a_file_that_cannot_be_mapped_is_an_error_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(8))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(ModelError, match="cannot be mapped"):
        DataFile.open(tmp_path / "w.bin")
