"""What comes back from a device, as somebody else may have written it; where a kit is to go."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile import project
from tests.hostile.table import Room, add

RESULTS, OUTPUTS, KITS = "results of devices", "outputs of devices", "kits"
VERIFY = ("verify", "dist/m/default/g", "--device-results", "device.json")


def document(group: Path) -> dict[str, Any]:
    """What a device says of the group as it was built."""
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in group.iterdir()
        if path.is_file() and path.name != "SHA256SUMS"
    }
    record = json.loads((group / "golden" / "golden.json").read_bytes())
    sets = [
        {"label": each["label"], "outputs": each["outputs"]}
        for each in record["models"]["a"]["sets"]
    ]
    model = {"model": "default/g/a", "files": files, "sets": sets, "outputs": "device.npz"}
    return {
        "version": 1,
        "made": "2026-01-01T00:00:00Z",
        "host": {},
        "packages": {},
        "built_with": {},
        "expect_driver": None,
        "devices": [],
        "models": [model],
    }


def results(name: str, make: Callable[[Path], object], says: str, **rest: Any) -> None:
    """A row: something is in the place of the results."""

    def put(room: Room) -> None:
        project.release(room)
        make(room.folder / "device.json")

    add(RESULTS, name, put, code=2, says=says, command=VERIFY, **rest)


def outputs(name: str, make: Callable[[Path], object], says: str, **rest: Any) -> None:
    """A row: the results are sound, and the outputs beside them are what `make` makes."""

    def put(room: Room) -> None:
        group = project.release(room) / "m" / "default" / "g"
        path = room.folder / "device.npz"
        make(path)
        said = document(group)
        if path.is_file():
            said["models"][0]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        (room.folder / "device.json").write_text(json.dumps(said), encoding="utf-8")

    add(OUTPUTS, name, put, code=7, says=says, command=VERIFY, **rest)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def _archive(path: Path, content: bytes, method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("0/outputs/y.npy", content)


def _pickled(path: Path) -> None:
    arrays: dict[str, Any] = {"0/outputs/y": np.array([{"a": 1}], dtype=object)}
    np.savez(path, **arrays)


def _header(shape: str) -> bytes:
    """An array without its elements."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


_NONE = "was not written by check_device.py"
results("a FIFO", os.mkfifo, "is a pipe", posix=True)
results("a folder", Path.mkdir, "device.json: ")
results("a link to /dev/zero", lambda p: p.symlink_to("/dev/zero"), "is a device", posix=True)
results("a sparse file of 1 TiB", _sparse, "it is larger than 256 MiB", posix=True)
results("empty", Path.touch, _NONE)
results("not UTF-8", lambda p: p.write_bytes(b"\xff\xfe"), _NONE)
results("nested 100,000 deep", lambda p: p.write_bytes(b'{"x":' + b"[" * 100_000), _NONE)
results("numbers of 10,000 digits", lambda p: p.write_bytes(b'{"version":' + b"9" * 10_000), _NONE)
outputs("a FIFO", os.mkfifo, "it is not a regular file", posix=True)
outputs("a link out", lambda p: p.symlink_to("../outside/secret"), "is a link", posix=True)
outputs("not there", lambda p: None, "it does not exist")
outputs("no ZIP", lambda p: p.write_bytes(b"PK"), "File is not a zip file")
outputs("a bomb", lambda p: _archive(p, b"\0" * 10**7, zipfile.ZIP_DEFLATED), "is compressed")
outputs("pickled objects", _pickled, "allow_pickle=False")
outputs("an array of 2^60 elements", lambda p: _archive(p, _header(f"({2**60},)")), "Unable to")
outputs("an array that ends early", lambda p: _archive(p, _header("(9,)")), "EOF: reading array")
outputs("a header that ends early", lambda p: _archive(p, _header("((")), "multi-line statement")


def _in_the_way(name: str, make: Callable[[Room], object]) -> None:
    def put(room: Room) -> None:
        project.release(room)
        make(room)

    command = ("kit", "dist/m", "-o", "k")
    add(KITS, name, put, code=2, says="k: ", command=command)


_in_the_way("a file in its place", lambda room: (room.folder / "k").touch())
_in_the_way("a folder of others in its place", lambda room: (room.folder / "k").mkdir())
_in_the_way(
    "a link to a folder outside in its place",
    lambda room: (room.folder / "k").symlink_to(room.outside, target_is_directory=True),
)
