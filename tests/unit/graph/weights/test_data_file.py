"""A file of weights: mapped, hashed, compared."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import sys
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import blake3
import numpy as np
import pytest

from epctx.errors import ModelError
from epctx.files.digest import CHUNK
from epctx.graph.weights import data_file
from epctx.graph.weights.data_file import READ, DataFile


def _file(folder: Path, data: bytes, name: str = "weights.bin") -> DataFile:
    (folder / name).write_bytes(data)
    return DataFile.open(folder / name)


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


@pytest.mark.parametrize(("offset", "length"), [(-1, 4), (97, 4), (101, 0)])
def test_a_view_outside_the_file_is_refused(tmp_path: Path, offset: int, length: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        _file(tmp_path, bytes(100)).view(offset, length)


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


def test_a_small_file_is_read_at_once_and_keeps_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mmap, "mmap", None)
    file = _file(tmp_path, bytes(READ))
    with (tmp_path / "weights.bin").open("r+b") as stream:
        stream.truncate(5)
    assert (file.size, bytes(file.view())) == (READ, bytes(READ))
    assert file.changed()


def test_a_small_file_that_cannot_be_read_is_an_error_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(data_file, "FileIO", Broken)
    with pytest.raises(ModelError, match=r"cannot be read: Input/output error") as caught:
        _file(tmp_path, b"weights")
    assert caught.value.remedy == "check the disk"


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
    (tmp_path / "w.bin").write_bytes(bytes(READ + 1))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(ModelError, match="cannot be mapped"):
        DataFile.open(tmp_path / "w.bin")


SIZE = 3 << 20


def changed(*offsets: int) -> memoryview:
    data = bytearray(SIZE)
    for offset in offsets:
        data[offset] = 1
    return memoryview(data)


@pytest.mark.parametrize("offset", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, SIZE - 1])
def test_the_first_difference(offset: int) -> None:
    assert data_file.first_difference(changed(), changed(offset, SIZE - 1)) == offset


def test_words() -> None:
    told = data_file.difference(changed(), changed(1234, 2_000_000))
    assert told == "byte 1,234 of 3,145,728 is the first of 2 that differ"
    told = data_file.difference(memoryview(b"abc"), memoryview(b"abcd"))
    assert told == "3 bytes are now 4, the first difference is at byte 3"
