from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctx.providers.onnxruntime.openvino import binary as openvino_binary
from epctx.providers.onnxruntime.openvino.binary import Blob, Malformed, OpenVinoBinary


def text(name: str, value: str) -> bytes:
    data = value.encode() + b"\0"
    return b"\x02" + name.encode() + b"\0" + struct.pack("<i", len(data)) + data


def document(*elements: bytes) -> bytes:
    body = b"".join(elements) + b"\0"
    return struct.pack("<i", len(body) + 4) + body


def nested(name: str, inner: bytes) -> bytes:
    return b"\x03" + name.encode() + b"\0" + inner


def number(name: str, value: int) -> bytes:
    return b"\x12" + name.encode() + b"\0" + struct.pack("<q", value)


def binary(offset: int = 64, size: int = 8, table: bytes | None = None) -> bytes:
    if table is None:
        blob = document(number("data_offset", offset), number("size", size))
        blobs = nested("blob_metadata_map", document(nested("part_1", blob)))
        table = document(blobs, text("producer", "plugin-1"), text("version", "1.1.0"))
    header = struct.pack("<8sQQQQ", b"OVEP_BIN", 1, 40, 40, len(table))
    return header + table + bytes(256)


def test_its_blobs_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(binary())
    assert openvino_binary.read(path) == OpenVinoBinary(
        producer="plugin-1", version="1.1.0", blobs=(Blob(name="part_1", offset=64, size=8),)
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it has 0 bytes"),
        (bytes(64), "it begins with"),
        (binary()[:60], "its table reaches"),
        (binary(offset=10_000), "blob part_1 reaches to byte 10008"),
        (binary(offset=-1), "blob part_1 reaches"),
        (binary(table=document(b"\x7fmax\0")), "a value of type 0x7f"),
        (binary(table=document(nested("blob_metadata_map", document(text("a", "b"))))), "no place"),
    ],
)
def test_a_broken_one_says_what_is_wrong(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(data)
    with pytest.raises(Malformed, match=words):
        openvino_binary.read(path)


@given(st.integers(0, 200), st.binary(min_size=1, max_size=8))
def test_no_bytes_make_it_fail_otherwise(
    tmp_path_factory: pytest.TempPathFactory, position: int, junk: bytes
) -> None:
    data = bytearray(binary())
    data[position : position + len(junk)] = junk
    path = tmp_path_factory.mktemp("ov") / "x.bin"
    path.write_bytes(data)
    with contextlib.suppress(Malformed):
        openvino_binary.read(path)


def part(path: Path, name: str, content: bytes, producer: str = "plugin-1") -> Path:
    """A binary of one blob, as the plugin writes it."""
    blob = document(number("data_offset", 65536), number("size", len(content)))
    blobs = nested("blob_metadata_map", document(nested(name, blob)))
    table = document(blobs, text("producer", producer), text("version", "1.1.0"))
    head = struct.pack("<8sQQQQ", b"OVEP_BIN", 1, 40, 40, len(table)) + table
    path.write_bytes(head.ljust(65536, b"\0") + content.ljust(65536, b"\0"))
    return path


def test_several_become_one(tmp_path: Path) -> None:
    contents = {"b": b"second" * 20_000, "a": b"first"}
    paths = [part(tmp_path / f"{name}.bin", name, data) for name, data in contents.items()]
    merged = tmp_path / "merged.bin"
    merged.write_bytes(b"".join(map(bytes, openvino_binary.merge(paths))))
    found = openvino_binary.read(merged)
    assert (found.producer, found.version) == ("plugin-1", "1.1.0")
    assert [blob.name for blob in found.blobs] == ["a", "b"]
    data = merged.read_bytes()
    for blob in found.blobs:
        assert blob.offset % 65536 == 0
        assert data[blob.offset : blob.offset + blob.size] == contents[blob.name]
    assert len(data) % 65536 == 0
    again = b"".join(map(bytes, openvino_binary.merge(paths[::-1])))
    assert again == data  # whatever the order


def test_what_cannot_become_one_says_why(tmp_path: Path) -> None:
    one = part(tmp_path / "one.bin", "a", b"1")
    same = part(tmp_path / "same.bin", "a", b"2")
    other = part(tmp_path / "other.bin", "b", b"2", producer="plugin-2")
    with pytest.raises(Malformed, match=r"one\.bin both have a"):
        list(openvino_binary.merge([one, same]))
    with pytest.raises(Malformed, match="by plugin-1 and by plugin-2"):
        list(openvino_binary.merge([one, other]))
