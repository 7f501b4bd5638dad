"""The context binary: what is written is read, and what is not exactly that is refused."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from epctx.errors import InvalidGraph
from epctx.files.digest import of_bytes
from epctx.providers.reference import layout, reader
from epctx.providers.reference.layout import ENTRY, HEADER, PREFIX_SIZE, TENSOR, Meta
from epctx.providers.reference.workspace import ContextWriter, Graph, Weight

META = Meta(
    sdk_version="1.2.3", driver_version="4.5", hardware_architecture="generic", source="ref"
)


def weight(data: bytes) -> Weight:
    return Weight(digest=of_bytes(data), length=len(data), chunks=lambda: iter((data,)))


def graph(name: str, *weights: bytes) -> Graph:
    return Graph(
        name=name,
        model="m.onnx",
        proto=b"proto of " + name.encode(),
        weights=tuple(map(weight, weights)),
    )


A, B = b"a" * 5000, b"b" * 4096


def binary(*graphs: Graph) -> bytes:
    return b"".join(ContextWriter(meta=META, graphs=list(graphs)).chunks())


def read(data: bytes) -> reader.Context:
    return reader.open_payload(data, where="here")


WHOLE = binary(graph("one", A, B), graph("two", B))


def test_a_weight_is_stored_once_by_content_at_a_page() -> None:
    context = read(WHOLE)
    assert WHOLE.count(A) == WHOLE.count(B) == 1
    assert len(context.tensors) == 2
    assert all(tensor.offset % 4096 == 0 for tensor in context.tensors.values())


def test_the_header_is_as_documented() -> None:
    assert WHOLE[:8] == bytes.fromhex("89 45 50 43 54 58 0D 0A")
    assert struct.unpack_from("<IIQ", WHOLE, 8) == (1, 5, len(WHOLE))
    kinds = [WHOLE[64 + 64 * i : 68 + 64 * i] for i in range(5)]
    assert kinds == [b"META", b"GRPH", b"MODL", b"TENS", b"DATA"]
    assert layout.PREFIX_SIZE == 384


def test_no_byte_can_change_unnoticed() -> None:
    """Every byte before the weights, and a sample of those in them, each in one bit."""
    start = WHOLE.index(A)
    for place in (*range(start), *range(start, len(WHOLE), 509), len(WHOLE) - 1):
        data = bytearray(WHOLE)
        data[place] ^= 1 << place % 8
        with pytest.raises(InvalidGraph, match="is not a sound context binary"):
            read(bytes(data))


@pytest.mark.parametrize("length", [0, 1, 63, 64, 383, 384, 1000, len(WHOLE) - 1])
def test_a_binary_cut_short_is_refused(length: int) -> None:
    with pytest.raises(InvalidGraph, match="not a sound"):
        read(WHOLE[:length])


def test_a_binary_with_something_after_it_is_refused() -> None:
    with pytest.raises(InvalidGraph, match="its header says"):
        read(WHOLE + b"\0")


def test_another_format_version_is_refused_by_its_number() -> None:
    data = bytearray(WHOLE)
    struct.pack_into("<I", data, 8, 2)
    with pytest.raises(InvalidGraph, match="format version 2, this epctx reads 1"):
        read(bytes(data))


def resealed(change: Callable[[bytearray], None]) -> bytes:
    """A binary that was changed on purpose, its checksums made right again."""
    data = bytearray(WHOLE)
    change(data)
    for i in range(4):
        kind, low, offset, length, high, _ = ENTRY.unpack_from(data, 64 + 64 * i)
        digest = bytes.fromhex(of_bytes(data[offset : offset + length]).hex)
        ENTRY.pack_into(data, 64 + 64 * i, kind, low, offset, length, high, digest)
    fields = HEADER.unpack_from(data, 0)
    digest = bytes.fromhex(of_bytes(data[64:PREFIX_SIZE]).hex)
    HEADER.pack_into(data, 0, *fields[:-1], digest)
    return bytes(data)


def table(section: int) -> tuple[int, int]:
    _, _, offset, length, _, _ = ENTRY.unpack_from(WHOLE, 64 + 64 * section)
    return offset, length


def entry(**changes: int) -> Callable[[bytearray], None]:
    """Change the first entry of the tensor table."""

    def change(data: bytearray) -> None:
        offset, _ = table(3)
        old = dict(zip(("offset", "length"), TENSOR.unpack_from(data, offset)[:2], strict=True))
        new = old | changes
        struct.pack_into("<QQ", data, offset, new["offset"], new["length"])

    return change


def section(number: int, **changes: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        for name, value in changes.items():
            struct.pack_into("<Q", data, 64 + 64 * number + (8 if name == "offset" else 16), value)

    return change


def text(old: bytes, new: bytes) -> Callable[[bytearray], None]:
    assert len(old) == len(new) and WHOLE.count(old) >= 1

    def change(data: bytearray) -> None:
        at = data.index(old)
        data[at : at + len(old)] = new

    return change


FIRST = WHOLE.index(A)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (entry(offset=FIRST + 1), "not at"),
        (entry(offset=0), "not at"),
        (entry(offset=2**63), "not at"),
        (entry(length=0), "empty or reaches beyond"),
        (entry(length=2**63), "empty or reaches beyond"),
        (entry(length=len(A) - 1), "checksum of the tensor"),
        (entry(length=4096 * 3), "checksum of the tensor"),
        (section(0, offset=2**60), "not at"),
        (section(1, length=2**60), "reaches beyond the file"),
        (section(4, offset=8192), "not at"),
        (section(4, length=4096), "bytes follow its last section"),
        (text(b'"name":"two"', b'"name":"one"'), "two graphs are called 'one'"),
        (text(b'"offset":0,', b'"offset":1,'), "is at the wrong offset"),
        (text(b'"offset":0,', b'"offset": ,'), "GRPH"),
        (text(b'"length":12,', b'"length":99,'), "reaches beyond its section"),
        (text(b'"sdk_version"', b'"sdk_versiom"'), "META"),
        (text(b"1.2.3", b"\xff.2.3"), "META"),
    ],
)
def test_tables_are_checked_beyond_their_checksums(
    change: Callable[[bytearray], None], message: str
) -> None:
    with pytest.raises(InvalidGraph, match=message) as raised:
        read(resealed(change))
    assert str(raised.value).startswith("INVALID_GRAPH: here: ")


class TestPaths:
    """`ep_cache_context` leads to a regular file inside the folder, or nowhere."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "model"
        (folder / "sub").mkdir(parents=True)
        (folder / "a.bin").write_bytes(WHOLE)
        (folder / "sub" / "b.bin").write_bytes(WHOLE)
        (tmp_path / "outside.bin").write_bytes(WHOLE)
        return folder

    @pytest.mark.parametrize("location", ["a.bin", "sub/b.bin", "./a.bin", "sub/./b.bin"])
    def test_a_file_beside_the_model_or_in_a_subfolder_is_read(
        self, folder: Path, location: str
    ) -> None:
        assert reader.open_file(folder, location, where="n").file is not None

    @pytest.mark.parametrize(
        "location",
        ["../outside.bin", "sub/../../outside.bin", "sub/../a.bin", "", "sub", "absent.bin",
         "a.bin\0", "C:\\a.bin", "sub\\b.bin"],
    )  # fmt: skip
    def test_any_other_path_is_refused(self, folder: Path, location: str) -> None:
        with pytest.raises(InvalidGraph, match="cannot be used"):
            reader.open_file(folder, location, where="n")

    def test_an_absolute_path_is_refused(self, folder: Path) -> None:
        with pytest.raises(InvalidGraph, match="absolute"):
            reader.open_file(folder, str(folder / "a.bin"), where="n")

    @pytest.mark.needs("links")
    def test_a_link_that_leads_out_is_refused_and_one_that_stays_is_read(
        self, folder: Path
    ) -> None:
        (folder / "out.bin").symlink_to(folder.parent / "outside.bin")
        (folder / "in.bin").symlink_to(folder / "sub" / "b.bin")
        with pytest.raises(InvalidGraph, match="outside"):
            reader.open_file(folder, "out.bin", where="n")
        assert reader.open_file(folder, "in.bin", where="n").meta == META

    @pytest.mark.needs("POSIX", "no FIFOs here")
    def test_a_fifo_is_refused_and_does_not_hang(self, folder: Path) -> None:
        os.mkfifo(folder / "pipe.bin")
        with pytest.raises(InvalidGraph, match="cannot be used"):
            reader.open_file(folder, "pipe.bin", where="n")
