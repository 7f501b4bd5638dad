from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import blake3
import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from epctx.digest import CHUNK, HashingWriter
from epctx.errors import ModelError
from epctx.graph import mapped
from epctx.graph.mapped import DataFile, MappedTensor, content_digest


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
    passes = []
    chunks = DataFile.chunks
    monkeypatch.setattr(
        DataFile, "chunks", lambda self, *range_: passes.append(range_) or chunks(self, *range_)
    )

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


def test_a_file_that_is_written_to_has_changed(tmp_path: Path) -> None:
    file = _file(tmp_path, bytes(10))
    assert not file.changed()
    (tmp_path / "weights.bin").write_bytes(bytes(11))
    assert file.changed()
    (tmp_path / "weights.bin").unlink()
    assert file.changed()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file") as caught:
        DataFile.open(tmp_path / "none.bin")
    assert str(tmp_path / "none.bin") in str(caught.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder"):
        DataFile.open(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match="not a regular file"):
        DataFile.open(tmp_path / "pipe")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")
def test_a_loop_of_links_is_an_error_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ModelError, match="cannot be opened"):
        DataFile.open(tmp_path / "a")


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be replaced")
def test_a_file_exchanged_while_it_is_opened_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, secret = tmp_path / "w.bin", tmp_path / "secret"
    path.write_bytes(b"weights")
    secret.write_bytes(b"secret!")
    real_open = os.open

    def race(target: Path, flags: int) -> int:
        path.unlink()
        path.symlink_to(secret)
        return real_open(target, flags)

    monkeypatch.setattr(mapped.os, "open", race)
    with pytest.raises(ModelError, match="exchanged"):
        DataFile.open(path)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts its files by /proc")
def test_one_file_per_tensor_may_exceed_the_soft_limit_of_open_files(tmp_path: Path) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = max(int(each.name) for each in Path("/proc/self/fd").iterdir()) + 20
    if hard <= low + 50:
        pytest.skip("the hard limit is too low to show it")
    for i in range(60):
        (tmp_path / f"{i}.bin").write_bytes(bytes(8))
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    try:
        files = [DataFile.open(tmp_path / f"{i}.bin") for i in range(60)]
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > low
        assert all(bytes(file.view()) == bytes(8) for file in files)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_that_cannot_be_mapped_is_an_error_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(8))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(mapped.errno.ENODEV, "No such device")

    monkeypatch.setattr(mapped.mmap, "mmap", refuse)
    with pytest.raises(ModelError, match="cannot be mapped"):
        DataFile.open(tmp_path / "w.bin")


def test_at_the_hard_limit_of_open_files_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(8))
    monkeypatch.setattr(mapped, "_raise_file_limit", lambda: False)

    def full(*_: object) -> int:
        raise OSError(mapped.errno.EMFILE, os.strerror(mapped.errno.EMFILE))

    monkeypatch.setattr(mapped.os, "open", full)
    with pytest.raises(ModelError, match="Too many open files"):
        DataFile.open(tmp_path / "w.bin")
