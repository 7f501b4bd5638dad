"""The ZIP of a flexible context binary; QNN's own are read in tests/integration."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import pytest

from epctx.providers.onnxruntime.qnn import dlc

TIME = "2026-11-23 11:11:18 UTC"
CACHES = [{"cacheName": "htp.cache.sm8650.0", "socModel": 57, "timestamp": TIME}]


def made(path: Path, *, crc: bool = False, compression: int = zipfile.ZIP_STORED) -> Path:
    """A ZIP as QNN writes it, but small: weights that look like its metadata, no checksums."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("htp.shared.weights.<x>", f'"timestamp": "{TIME}"')
        archive.writestr("htp.cache.sm8650.0", bytes(range(64)))
        text = json.dumps({"header": {"timestamp": TIME}, "cacheList": CACHES}, indent=4)
        archive.writestr("dlc.metadata2.3.0", text)
    if not crc:
        data = bytearray(path.read_bytes())
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                struct.pack_into("<I", data, entry.header_offset + 14, 0)
        place = data.find(b"PK\x01\x02")
        while place >= 0:
            struct.pack_into("<I", data, place + 16, 0)
            place = data.find(b"PK\x01\x02", place + 4)
        path.write_bytes(data)
    return path


def test_the_parts_of_a_file(tmp_path: Path) -> None:
    data = made(tmp_path / "a.bin").read_bytes()
    parts = dlc.entries(io.BytesIO(data))
    assert [part.name for part in parts] == [
        *("htp.shared.weights.<x>", "htp.cache.sm8650.0", "dlc.metadata2.3.0")
    ]
    cache = parts[1]
    assert data[cache.offset : cache.offset + cache.size] == bytes(range(64))
    assert dlc.chips(io.BytesIO(data), parts) == {"htp.cache.sm8650.0": 57}


def test_the_time_goes_from_its_metadata_and_nothing_else_changes(tmp_path: Path) -> None:
    path = made(tmp_path / "a.bin")
    before = path.read_bytes()
    assert dlc.canonicalize(path)
    after = path.read_bytes()
    start = dlc.entries(io.BytesIO(before))[2].offset
    epoch = b"1980-01-01 00:00:00 UTC"
    assert after == before[:start] + before[start:].replace(TIME.encode(), epoch)
    assert after.count(epoch) == 2
    assert TIME.encode() in after[:start]
    dlc.canonicalize(path)
    assert path.read_bytes() == after


def test_what_has_checksums_or_is_no_zip_stays(tmp_path: Path) -> None:
    path = made(tmp_path / "a.bin", crc=True)
    before = path.read_bytes()
    assert dlc.canonicalize(path)
    assert path.read_bytes() == before
    path.write_bytes(b"\0\0\0\2\0\0\0\3")
    assert not dlc.canonicalize(path)


@pytest.mark.parametrize("kept", [4, 60, -1, -100])
def test_a_file_that_is_cut_short(tmp_path: Path, kept: int) -> None:
    data = made(tmp_path / "a.bin").read_bytes()[:kept]
    with pytest.raises(ValueError, match="cannot be read"):
        dlc.entries(io.BytesIO(data))


def test_other_zips(tmp_path: Path) -> None:
    packed = made(tmp_path / "a.bin", compression=zipfile.ZIP_DEFLATED).read_bytes()
    with pytest.raises(ValueError, match="is compressed"):
        dlc.entries(io.BytesIO(packed))
    data = bytearray(made(tmp_path / "b.bin").read_bytes())
    stream = io.BytesIO(data)
    (weights, cache, metadata) = dlc.entries(stream)
    with pytest.raises(ValueError, match=r"it has no dlc\.metadata"):
        dlc.chips(stream, [weights, cache])
    for content in (b"{}", b"[" * 100_000):
        with pytest.raises(ValueError, match="does not list the chips"):
            dlc.chips(io.BytesIO(content), [metadata._replace(offset=0, size=len(content))])
    data[data.find(b"PK\x03\x04", 4)] = 0
    with pytest.raises(ValueError, match="is cut short"):
        dlc.entries(io.BytesIO(data))
