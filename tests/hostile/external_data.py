"""External data: where it is said to be, what is there, and how much of it is asked for."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from tests.hostile import project
from tests.hostile.models import node, of
from tests.hostile.table import Room, add

KIND = "external data"


def weight(**entries: str) -> TensorProto:
    """A float[4] weight in another file."""
    tensor = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def put(room: Room, *tensors: TensorProto) -> None:
    """A model of these weights; 4096 bytes of data in `w.data`."""
    (room.folder / "w.data").write_bytes(bytes(4096))
    total = [node("Add", ["x", tensors[0].name], ["y"], name="add")]
    project.replace_model(room, of(*total, weights=list(tensors)))


def location(name: str, text: str, says: str, **rest: Any) -> None:
    """A row: the weight is said to be at `text`."""

    def make(room: Room) -> None:
        put(room, weight(location=text.replace("{outside}", room.outside.as_posix())))

    add(KIND, f"location: {name}", make, says=says, **{"code": 4, **rest})


location("empty", "", "it is empty")
location("`..`", "../outside/secret", "leads out of the folder by `..`")
location("`..` in the middle", "sub/../../outside/secret", "leads out of the folder by `..`")
location("`..` that stays inside", "sub/../w.data", "leads out of the folder by `..`")
location("absolute", "{outside}/secret", "it is absolute")
location("absolute twice", "//{outside}/secret", "it is absolute")
location("a drive letter", "C:/Windows/win.ini", "it is absolute")
location("a drive's own folder", "C:w.data", "it is absolute")
location("a UNC path", "\\\\server\\share\\w.data", "backslash")
location("a UNC path with slashes", "//server/share/w.data", "it is absolute")
location("a device path", "\\\\.\\PhysicalDrive0", "backslash")
location("`..` with backslashes", "..\\outside\\secret", "backslash")
location("NUL", "w.data\0.txt", "NUL")
location("the folder itself", ".", "it is the folder itself")
location("a folder", "sub", "a.onnx", code=4)
location("a URL", "https://example.com/w.data", "a.onnx")
location("a home folder", "~/w.data", "is not in")
location("a variable", "$HOME/w.data", "is not in")
location("5000 characters", "w" * 5000, "a.onnx")
location("1000 folders", "d/" * 1000 + "w.data", "a.onnx")
location("another case", "W.DATA", "did you mean 'w.data'?", posix=True)
location("a look-alike letter", "w.d\u0430ta", "is not in")
location("a decomposed letter", "\u0077\u0301.data", "is not in")
location("right to left", "w\u202edata", "is not in")
location("a line break", "w\n.data", "a.onnx")
location("an escape sequence", "\x1b[2Jw.data", "a.onnx")
location("a space at the end", "w.data ", "a.onnx", posix=True)
location("a reserved name of Windows", "NUL", "a.onnx")
location("a stream of NTFS", "w.data:secret", "a.onnx")
location("missing", "nobody.data", "is not in")
location("the model itself", "a.onnx", "is the model itself")


def data(name: str, make: Callable[[Path, Room], object], says: str, **rest: Any) -> None:
    """A row: what is at the weight's location is something else."""

    def spoil(room: Room) -> None:
        put(room, weight(location="w.data"))
        (room.folder / "w.data").unlink()
        make(room.folder / "w.data", room)

    options = {"code": 4, "posix": True, **rest}
    add(KIND, f"the file is {name}", spoil, says=says, **options)


data("a link out of the folder", lambda p, room: p.symlink_to(room.outside / "secret"), "a link to")
data("a relative link out", lambda p, room: p.symlink_to("../outside/secret"), "a link to")
data("a link to a link out", lambda p, room: _chain(p, room), "a link to")
data("a link to itself", lambda p, room: p.symlink_to("w.data"), "a.onnx")
data("a dangling link", lambda p, room: p.symlink_to("nobody"), "a.onnx")
data("a link to /etc/passwd", lambda p, room: p.symlink_to("/etc/passwd"), "a link to")
data("a link to /proc/self/mem", lambda p, room: p.symlink_to("/proc/self/mem"), "a link to")
data("a link to /dev/zero", lambda p, room: p.symlink_to("/dev/zero"), "not a regular file")
data("a FIFO", lambda p, room: os.mkfifo(p), "not a regular file")
data("a socket", lambda p, room: _socket(p), "not a regular file")
data("a folder", lambda p, room: p.mkdir(), "is a folder")
data("empty", lambda p, room: p.touch(), "reaches to byte 16")
data("cut short", lambda p, room: p.write_bytes(bytes(15)), "reaches to byte 16")
data(
    "a hard link to a file outside (no link can be told from it, its bytes are the model's)",
    lambda p, room: p.hardlink_to(room.outside / "secret"),
    "verified",
    code=0,
)


def _chain(path: Path, room: Room) -> None:
    (room.folder / "hop").symlink_to(room.outside)
    path.symlink_to("hop/secret")


def _socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)  # a whole path may be too long for one


def _folder_link(room: Room) -> None:
    put(room, weight(location="sub/secret"))
    (room.folder / "sub").symlink_to(room.outside)


add(KIND, "a folder on the way is a link out", _folder_link, code=4, says="a link to", posix=True)


def entries(
    name: str, says: str, *, code: int = 4, dims: list[int] | None = None, **keys: str
) -> None:
    """A row: other keys and values of the weight."""

    def make(room: Room) -> None:
        tensor = weight(**{"location": "w.data", **keys})
        if dims is not None:
            del tensor.dims[:]
            tensor.dims.extend(dims)
        put(room, tensor)

    add(KIND, name, make, code=code, says=says)


entries("offset beyond the file", "reaches to byte 4112", offset="4096")
entries("offset far beyond", "reaches to byte", offset=str(2**62))
entries("offset of 2^63 - 1", "reaches to byte", offset=str(2**63 - 1))
entries("offset of 2^64", "offset", offset=str(2**64))
entries("offset of 5000 digits", "offset", offset="9" * 5000)
entries("negative offset", "offset", offset="-16")
entries("offset that is hexadecimal", "offset", offset="0x10")
entries("offset that is a float", "offset", offset="1e3")
entries("offset with an underscore", "offset", offset="1_0")
entries("offset in other digits", "offset", offset="\u0661\u0662")
entries("offset that is empty", "offset", offset="")
entries("offset with a space", "offset", offset=" 16")
entries("length beyond the file", "has 8192 bytes of external data", length="8192")
entries("length too short", "has 12 bytes of external data", length="12")
entries("length of 0", "has 0 bytes of external data", length="0")
entries("negative length", "length", length="-1")
entries("length of 2^64 - 1", "length", length=str(2**64 - 1))
entries("a checksum of another file", "SHA-1", checksum="0" * 40)
entries("a checksum that is none", "checksum", checksum="abc")
entries("a base path", "key 'basepath': ONNX Runtime does not load", basepath="/etc")
entries("an unknown key", "key 'color': ONNX Runtime does not load", color="blue")
entries("a prepacked copy", "key 'prepacked_0': ONNX Runtime computes", prepacked_0="k|64;64;0")
entries("a tensor of terabytes", "reaches to byte", dims=[1 << 20, 1 << 20])
entries("a tensor of 2^62 bytes", "larger than any file", dims=[1 << 30, 1 << 30])
entries("dimensions that multiply past 2^63", "larger than any file", dims=[1 << 32, 1 << 32])
entries("dimensions whose product wraps to 4", "larger than any file", dims=[1 << 62, 4, 4, 4])
entries("a negative dimension", "negative dimension", dims=[-4])
entries("10,000 dimensions", "10,000 dimensions", dims=[1] * 10_000)


def _both(room: Room) -> None:
    tensor = weight(location="w.data")
    tensor.raw_data = bytes(16)
    put(room, tensor)


def _strings(room: Room) -> None:
    tensor = weight(location="w.data")
    tensor.data_type = TensorProto.STRING
    put(room, tensor)


def _no_location(room: Room) -> None:
    put(room, weight(offset="0"))


def _twice(key: str, value: str) -> Callable[[Room], None]:
    def make(room: Room) -> None:
        tensor = weight(location="w.data", offset="0")
        tensor.external_data.add(key=key, value=value)
        put(room, tensor)
        (room.folder / "v.data").write_bytes(bytes(4096))

    return make


add(KIND, "bytes inside and outside", _both, code=4, says="raw_data and external data")
add(KIND, "strings", _strings, code=4, says="strings")
add(KIND, "no location", _no_location, code=4, says="it is empty")
for key, value in (("location", "../outside/secret"), ("location", "v.data"), ("offset", "16")):
    add(
        KIND,
        f"{key} twice: {value}",
        _twice(key, value),
        code=4,
        says=f"'{key}': it is there twice",
    )


add(
    KIND,
    "the model is a sparse file of 1 TiB",
    lambda room: os.truncate(room.folder / "a.onnx", 1 << 40),
    code=4,
    says="more than 256 GiB",
    posix=True,
)


def _sparse_file(room: Room) -> None:
    """A file of 1 TiB that takes no room, of which all is asked for."""
    tensor = weight(location="w.data")
    tensor.dims[:] = [1 << 38]
    put(room, tensor)
    os.truncate(room.folder / "w.data", 1 << 40)


def _elsewhere(name: str, says: str, make: Callable[[Room], object], **rest: Any) -> None:
    def put_it(room: Room) -> None:
        project.manifest(room, lambda m: m["models"]["a"].update(external_data_dir="weights"))  # type: ignore[index]
        make(room)

    add(KIND, name, put_it, says=says, **{"code": 4, "posix": True, **rest})


_elsewhere("external_data_dir is missing", "weights", lambda room: None)
_elsewhere("external_data_dir is a file", "weights", lambda room: (room.folder / "weights").touch())
_elsewhere(
    "external_data_dir is a link out",
    "leads out of the manifest's folder",
    lambda room: (room.folder / "weights").symlink_to(room.outside),
    code=3,
)


def _linked(room: Room) -> None:
    (room.folder / "weights").mkdir()
    (room.folder / "weights" / "a.data").symlink_to(room.outside / "secret")


_elsewhere(
    "a file in external_data_dir is a link out",
    "a link to",
    _linked,
)


def _in_a_body(room: Room) -> None:
    """A location in a constant of a body of a node."""
    inner = onnx.helper.make_graph(
        [node("Constant", [], ["t"], value=weight(location="../outside/secret"))],
        "b",
        [],
        [onnx.helper.make_tensor_value_info("t", 1, [4])],
    )
    put(room, weight(location="w.data"))
    model = onnx.load(room.folder / "a.onnx", load_external_data=False)
    condition = onnx.helper.make_tensor("v", TensorProto.BOOL, [], [True])
    model.graph.node.append(node("Constant", [], ["c"], value=condition))
    model.graph.node.append(node("If", ["c"], ["z"], then_branch=inner, else_branch=inner))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, [4]))
    project.replace_model(room, model)


add(KIND, "`..` in a constant of a body", _in_a_body, code=4, says="`..`")
add(
    KIND,
    "a sparse file of 1 TiB, a tensor as large",
    _sparse_file,
    code=4,
    says="more than 256 GiB",
    how="process",
    posix=True,
    memory=600,
    seconds=90.0,
)
