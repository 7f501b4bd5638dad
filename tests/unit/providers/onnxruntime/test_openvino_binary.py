from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctx.providers.onnxruntime import openvino_binary
from epctx.providers.onnxruntime.openvino_binary import Blob, Malformed, OpenVinoBinary


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


def test_its_blobs_are_listed(tmp_path):
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
def test_a_broken_one_says_what_is_wrong(tmp_path, data, words):
    path = tmp_path / "x.bin"
    path.write_bytes(data)
    with pytest.raises(Malformed, match=words):
        openvino_binary.read(path)


@given(st.integers(0, 200), st.binary(min_size=1, max_size=8))
def test_no_bytes_make_it_fail_otherwise(tmp_path_factory, position, junk):
    data = bytearray(binary())
    data[position : position + len(junk)] = junk
    path = tmp_path_factory.mktemp("ov") / "x.bin"
    path.write_bytes(data)
    with contextlib.suppress(Malformed):
        openvino_binary.read(path)
