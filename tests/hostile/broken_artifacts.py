"""Context binaries and EPContext models that are not what was built: never other numbers.

`run` has no SHA256SUMS to go by, so the reference EP itself must find every change. `verify` is
asked without that file too, as of a folder that somebody else made.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import onnx
from onnx import AttributeProto, helper

from epctx.providers.reference.layout import ENTRY, HEADER, KINDS, PREFIX_SIZE, TENSOR
from epctx.runtime import InferenceSession
from tests.hostile import project
from tests.hostile.table import Make, Room, add
from tests.kit.building import build, mlp
from tests.kit.sealing import resealed, with_field

BINARY, MODEL = "broken context binary", "broken EPContext model"
GROUP = "dist/m/default/g"
CONTEXT, NODE = f"{GROUP}/a_reference.bin", f"{GROUP}/a_ctx.onnx"
RUN, INSPECT = ("run", NODE), ("inspect", CONTEXT)
VERIFY = ("verify", GROUP)
Change = Callable[[bytes], bytes]


def _binary(name: str, change: Change, *, seal: bool = False, says: str = "INVALID_GRAPH") -> None:
    """A row for `run`: exit 7, whatever was changed."""

    def make(room: Room) -> None:
        path = project.publish(room) / "a_reference.bin"
        before = path.read_bytes()
        after = change(before)
        after = resealed(after) if seal else after
        assert after != before
        path.write_bytes(after)

    add(BINARY, name, make, code=7, says=says, command=RUN)


def _section(number: int) -> int:
    return HEADER.size + ENTRY.size * number


def _with_header(field: int, value: object) -> Callable[[bytes], bytes]:
    return lambda data: with_field(data, HEADER, 0, field, value)


_HEADER_FIELDS: Sequence[tuple[str, int, object]] = (
    ("magic", 0, b"\x89EPCTX\n\n"),
    ("format version 0", 1, 0),
    ("format version 2", 1, 2),
    ("format version 2**32 - 1", 1, 2**32 - 1),
    ("4 sections", 2, 4),
    ("6 sections", 2, 6),
    ("size 0", 3, 0),
    ("size 2**64 - 1", 3, 2**64 - 1),
    ("a reserved field", 4, b"\1" + bytes(7)),
    ("checksum of the table", 5, bytes(32)),
)
for label, field, value in _HEADER_FIELDS:
    _binary(f"header: {label}", _with_header(field, value))

_ENTRY_FIELDS: Sequence[tuple[str, int, object]] = (
    ("kind", 0, b"XXXX"),
    ("reserved", 1, b"\0\0\0\1"),
    ("offset 0, over the header", 2, 0),
    ("offset one on", 2, None),
    ("offset 2**64 - 1", 2, 2**64 - 1),
    ("length 0", 3, 0),
    ("length 2**64 - 1", 3, 2**64 - 1),
    ("checksum", 5, b"\xff" * 32),
)
for number, kind in enumerate(KINDS):
    for label, field, value in _ENTRY_FIELDS:

        def change(
            data: bytes, at: int = _section(number), f: int = field, v: object = value
        ) -> bytes:
            new = ENTRY.unpack_from(data, at)[f] + 1 if v is None else v
            if ENTRY.unpack_from(data, at)[f] == new:
                new = b"\1" * 32  # DATA has no checksum, GRPH may be empty
            # The table's own checksum is right: what is wrong in an entry has to be found itself.
            table = bytearray(with_field(data, ENTRY, at, f, new))
            fixed = resealed(bytes(table))[: HEADER.size]
            return fixed + bytes(table[HEADER.size :])

        _binary(f"section {kind.decode()}: {label}", change)


def _tensor(data: bytes, field: int, value: object) -> bytes:
    place = ENTRY.unpack_from(data, _section(3))[2]
    return with_field(data, TENSOR, place, field, value)


def _second_over_first(data: bytes) -> bytes:
    place = ENTRY.unpack_from(data, _section(3))[2]
    first = TENSOR.unpack_from(data, place)
    found = bytearray(data)
    TENSOR.pack_into(found, place + TENSOR.size, *first)
    return bytes(found)


_binary("a tensor before its section", lambda d: _tensor(d, 0, 0), seal=True)
_binary("a tensor that is not aligned", lambda d: _tensor(d, 0, 8193), seal=True)
_binary("a tensor beyond the file", lambda d: _tensor(d, 0, 1 << 40), seal=True)
_binary("a tensor of no bytes", lambda d: _tensor(d, 1, 0), seal=True)
_binary("a tensor of 2**64 - 1 bytes", lambda d: _tensor(d, 1, 2**64 - 1), seal=True)
_binary("two tensors at one place", _second_over_first, seal=True)
_binary("a weight flipped, checksums made right", lambda d: _flip(d, -100), seal=True)
_binary("a weight flipped", lambda d: _flip(d, -100))
_binary("the graph flipped, checksums made right", lambda d: _flip(d, _modl(d) + 40), seal=True)
_binary("padding that is not zeros", lambda d: _flip(d, PREFIX_SIZE + _meta(d)))


def _flip(data: bytes, at: int) -> bytes:
    found = bytearray(data)
    found[at] ^= 0x40
    return bytes(found)


def _modl(data: bytes) -> int:
    return int(ENTRY.unpack_from(data, _section(2))[2])


def _meta(data: bytes) -> int:
    """Where META ends; the next section begins at a multiple of 8."""
    return int(ENTRY.unpack_from(data, _section(0))[3])


def _cut(part: float) -> Callable[[bytes], bytes]:
    return lambda data: data[: int(len(data) * part)]


for part in (0.0, 0.001, 0.02, 0.1, 0.5, 0.9, 0.99):
    _binary(f"cut at {part:.1%}", _cut(part))
_binary("cut by one byte", lambda data: data[:-1])
_binary("cut by a page", lambda data: data[:-4096])
_binary("one byte appended", lambda data: data + b"\0")
_binary("a page appended", lambda data: data + bytes(4096))
_binary("twice itself", lambda data: data * 2)
_binary("a quarter zeros", lambda data: data[: len(data) // 4] + bytes(len(data) // 4)
        + data[len(data) // 2 :])  # fmt: skip
_binary("all zeros", lambda data: bytes(len(data)))
_binary("random bytes", lambda data: random.Random(0).randbytes(len(data)))
_binary("a quarter zeros in the middle", lambda data: _zeros(data, 0.25, 0.5))
_binary("the last tenth zeros", lambda data: _zeros(data, 0.9, 1.0))
_binary("64 bytes of weights flipped", lambda d: d[:-164] + bytes(255 - n for n in d[-164:-100])
        + d[-100:])  # fmt: skip
_binary("text", lambda data: b"version https://git-lfs.github.com/spec/v1\n")


def _zeros(data: bytes, first: float, last: float) -> bytes:
    a, b = int(len(data) * first), int(len(data) * last)
    return data[:a] + bytes(b - a) + data[b:]


def _file(name: str, kind: str, make: Make, command: tuple[str, ...], code: int, says: str) -> None:
    add(kind, name, make, code=code, says=says, command=command)


def _gone(room: Room) -> None:
    (project.publish(room) / "a_reference.bin").unlink()


def _folder(room: Room) -> None:
    path = project.publish(room) / "a_reference.bin"
    path.unlink()
    path.mkdir()


def _of_another_model(room: Room) -> None:
    """Same shapes, other weights: no EP but this one notices (real-eps.md section 5)."""
    published = project.publish(room)
    with_other = build(room.outside / "other", {"a": mlp(seed=9, width=32)})
    (published / "a_reference.bin").write_bytes((with_other / "a_reference.bin").read_bytes())
    shutil.rmtree(room.outside / "other")


def _of_another_batch(room: Room) -> None:
    published = project.publish(room)
    with_other = build(room.outside / "other", {"a": mlp(batch=8, width=32)})
    (published / "a_reference.bin").write_bytes((with_other / "a_reference.bin").read_bytes())
    shutil.rmtree(room.outside / "other")


def _not_a_file(name: str, make: Callable[[Path, Room], object]) -> None:
    """Rows: the context binary is of another kind; OpenVINO waits for a pipe, both follow links."""

    def put(room: Room) -> None:
        path = project.publish(room) / "a_reference.bin"
        path.rename(room.outside / path.name)
        make(path, room)

    add(BINARY, name, put, code=7, says="a_reference.bin", command=RUN, posix=True)
    without = _without_sums(put)
    add(
        BINARY, f"{name}, verified", without, code=7, says="a_reference", command=VERIFY, posix=True
    )


_file("deleted", BINARY, _gone, RUN, 7, "a_reference.bin")
_file("a folder in its place", BINARY, _folder, RUN, 7, "a_reference.bin")
_file("of another model of the same shapes", BINARY, _of_another_model, RUN, 7, "INVALID_GRAPH")
_file("of a model of another batch", BINARY, _of_another_batch, RUN, 7, "INVALID_GRAPH")


def _without_sums(make: Make) -> Make:
    def both(room: Room) -> None:
        make(room)
        (room.folder / GROUP / "SHA256SUMS").unlink()

    return both


def _in_a_linked_folder(path: Path, room: Room) -> None:
    """The file is there, through a link to a folder outside."""
    (path.parent / "sub").symlink_to(room.outside)
    model = onnx.load(path.with_name("a_ctx.onnx"))
    _attribute(_PATH, "sub/a_reference.bin")(model)
    path.with_name("a_ctx.onnx").write_bytes(model.SerializeToString())


def _socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)  # a whole path may be too long for one


_not_a_file("a FIFO", lambda path, room: os.mkfifo(path))
_not_a_file("a socket", lambda path, room: _socket(path))
_not_a_file(
    "a link to a file outside", lambda path, room: path.symlink_to(room.outside / path.name)
)
_not_a_file("a link to /dev/zero", lambda path, room: path.symlink_to("/dev/zero"))
_not_a_file("a link to itself", lambda path, room: path.symlink_to(path.name))
_not_a_file("in a folder that is a link", _in_a_linked_folder)


def _cut_binary(room: Room) -> None:
    path = project.publish(room) / "a_reference.bin"
    path.write_bytes(path.read_bytes()[:-4096])


def _flipped_binary(room: Room) -> None:
    path = project.publish(room) / "a_reference.bin"
    path.write_bytes(_flip(path.read_bytes(), -100))


for tried, make in {"flipped": _flipped_binary, "cut": _cut_binary, "deleted": _gone}.items():
    _file(f"{tried}, verified", BINARY, make, VERIFY, 7, "a_reference.bin")
for tried, make in {"cut": _cut_binary, "flipped": _flipped_binary}.items():
    says = "is not a sound context binary"
    _file(f"{tried}, inspected", BINARY, make, INSPECT, 7, says)
    _file(f"{tried}, inspected with its model", BINARY, make, ("inspect", NODE), 7, says)
for tried, make in {"flipped": _flipped_binary, "cut": _cut_binary, "deleted": _gone}.items():
    name = f"{tried}, verified without SHA256SUMS"
    _file(name, BINARY, _without_sums(make), VERIFY, 7, "a_reference.bin")


# ------------------------------------------------------------------------------- EPContext models


def _model(
    name: str,
    change: Callable[[onnx.ModelProto], object],
    says: str,
    *,
    run: int = 7,
    verified: int = 7,
) -> None:
    """Rows for `run` and, without SHA256SUMS, for `verify`.

    Args:
        run: 0 where the numbers are right; the row holds them to be.
        verified: 0 where it is told as not checkable.
    """

    def make(room: Room) -> None:
        path = project.publish(room) / "a_ctx.onnx"
        model = onnx.load(path)
        change(model)
        path.write_bytes(model.SerializeToString())

    add(MODEL, name, make, code=run, says=says, command=RUN, after=_right if run == 0 else None)
    told = "a_ctx.onnx" if verified else "not checkable"
    _file(f"{name}, verified", MODEL, _without_sums(make), VERIFY, verified, told)


def _right(room: Room) -> None:
    """What the changed model computes is what the one that was built computes."""
    found = []
    for folder in (room.folder, project.built()):
        with InferenceSession(folder / NODE) as session:
            zeros = {
                i.name: np.full(cast(list[int], i.shape), 0.5, np.float32)
                for i in session.get_inputs()
            }
            found += session.run(None, zeros)
    assert np.array_equal(*found)


def _attribute(name: str, value: object) -> Callable[[onnx.ModelProto], None]:
    """Set an attribute of the EPContext node; None: remove it."""

    def change(model: onnx.ModelProto) -> None:
        (node,) = (n for n in model.graph.node if n.op_type == "EPContext")
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)
        if isinstance(value, AttributeProto):
            node.attribute.append(value)
        elif value is not None:
            node.attribute.append(helper.make_attribute(name, value))

    return change


_PATH = "ep_cache_context"
for label, value in {
    "../a_reference.bin": "../a_reference.bin",
    "an absolute path": "/etc/hostname",
    "sub/../a_reference.bin": "sub/../a_reference.bin",
    "a drive letter": "C:a_reference.bin",
    "no file": "gone.bin",
    "no UTF-8": b"\xff\xfe",
    "NUL": "a\0b",
    "a UNC path": "\\\\server\\share\\a_reference.bin",
    "a UNC path with slashes": "//server/share/a_reference.bin",
    "5000 characters": "a" * 5000,
    "a reserved name of Windows": "NUL",
    "another case": "A_reference.bin",
    "a look-alike letter": "\u0430_reference.bin",
    "a line break": "a\n_reference.bin",
    "a backslash": "sub\\a_reference.bin",
    "the folder": ".",
    "a URL": "file:///etc/hostname",
}.items():
    _model(f"ep_cache_context: {label}", _attribute(_PATH, value), "INVALID_GRAPH")
_model("ep_cache_context: removed", _attribute(_PATH, None), "INVALID_GRAPH")
_model("ep_cache_context: an integer", _attribute(_PATH, 7), "INVALID_GRAPH")
_model("embed_mode: removed, so 1", _attribute("embed_mode", None), "INVALID_GRAPH")
_model("embed_mode: 2", _attribute("embed_mode", 2), "INVALID_GRAPH")
_model("embed_mode: a string", _attribute("embed_mode", "0"), "INVALID_GRAPH")
_model("main_context: 0, and no other", _attribute("main_context", 0), "INVALID_GRAPH")
_model("main_context: removed, so 1", _attribute("main_context", None), "output  type", run=0)
_model("main_context: 5", _attribute("main_context", 5), "INVALID_GRAPH")
_model("partition_name: another", _attribute("partition_name", "other"), "INVALID_GRAPH")
_model("notes: removed", _attribute("notes", None), "INVALID_GRAPH")
_model("ep_sdk_version: 99.0.0", _attribute("ep_sdk_version", "99.0.0"), "INVALID_GRAPH")
_model("hardware_architecture: another", _attribute("hardware_architecture", "x"), "INVALID_GRAPH")
_model("max_size: negative", _attribute("max_size", -1), "INVALID_GRAPH")
_model("source: unknown", _attribute("source", "nobody"), "nobody", verified=0)
_model("source: of another EP", _attribute("source", "QNNExecutionProvider"), "INVALID_GRAPH")
_model("source: empty", _attribute("source", ""), "source")
_model("an attribute that nobody knows", _attribute("weights", "x"), "output  type", run=0)
_model("partition_name: removed", _attribute("partition_name", None), "INVALID_GRAPH")
_model("inputs of another size", lambda m: _widened(m), "invalid dimensions for input", run=2)
_model("source: removed", _attribute("source", None), "source")


def _widened(model: onnx.ModelProto) -> None:
    """Inputs and outputs are no longer those of the context."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_value = 64


def _grown(room: Room) -> None:
    os.truncate(project.publish(room) / "a_reference.bin", 1 << 40)


add(BINARY, "a sparse file of 1 TiB", _grown, code=7, says="256 GiB", command=VERIFY, posix=True)
