"""Folders of outputs that somebody else made, and files for `run`: names, depths, kinds, sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile import project
from tests.hostile.caches import same
from tests.hostile.table import Room, add

KIND, GROUP = "folders of outputs", "dist/m/default/g"
MODEL = f"{GROUP}/a_ctx.onnx"
VERIFY, DIFF = ("verify", "dist"), ("diff", "dist/m", "m.lock.yaml")


def folder(
    name: str, spoil: Callable[[Path], object], command: tuple[str, ...], code: int, says: str,
    **rest: Any,
) -> None:  # fmt: skip
    """A row: `spoil` gets the folder of the published group."""

    def make(room: Room) -> None:
        spoil(project.publish(room))

    options: dict[str, object] = {"posix": True, **rest}
    label = f"{name}, `{command[0]}`"
    add(KIND, label, make, code=code, says=says, command=command, **options)


def named(name: bytes) -> Callable[[Path], None]:
    """One more model, of this name."""

    def make(group: Path) -> None:
        os.link(group / "a_ctx.onnx", os.fsencode(group) + b"/" + name)

    return make


_OWNED = b"x\n::error::owned\x1b[2J_ctx.onnx"
folder("a name that is not UTF-8", named(b"\xff\xfe_ctx.onnx"), VERIFY, 2, "is not UTF-8")
folder("a name that is not UTF-8", named(b"\xff\xfe_ctx.onnx"), DIFF, 0, "_ctx.onnx")
folder("a name with a command for GitHub", named(_OWNED), VERIFY, 7, ":\\u003aerror::owned\\x1b[2J")
folder("a name with a command for GitHub", named(_OWNED), DIFF, 0, ":\\u003aerror::owned\\x1b[2J")


def instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Something else in a file's place."""

    def spoil(group: Path) -> None:
        (group / name).unlink()
        make(group / name)

    return spoil


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


for _name in ("SHA256SUMS", "a_ctx.onnx", "a_reference.bin"):
    for _what, _make in {
        "a FIFO": os.mkfifo,
        "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
        "a folder": lambda path: path.mkdir(),
        "a sparse file of 1 TiB": _sparse,
    }.items():
        _label = f"{_name} is {_what}"
        folder(
            _label, instead(_name, _make), ("build", "m.yaml", "--jobs", "1"), 0, "verified",
            after=same, leaves=("dist/m/*",),
        )  # fmt: skip
        if not (_make is _sparse and _name != "SHA256SUMS"):  # which is read, all of it
            folder(_label, instead(_name, _make), VERIFY, 7, _name)


def given(name: str, make: Callable[[Path], object], says: str) -> None:
    """A row: a file of inputs for `run`."""

    def put(room: Room) -> None:
        project.publish(room)
        make(room.folder / "x.npz")

    command = ("run", MODEL, "--input", "x.npz")
    code = 2 if says.startswith("is a") else 4
    add(KIND, f"inputs: {name}", put, code=code, says=says, command=command, posix=True)


given("a FIFO", os.mkfifo, "is a pipe")
given("a folder", Path.mkdir, "is a folder")
given("a link to /dev/zero", lambda path: path.symlink_to("/dev/zero"), "is a device")
given("a sparse file of 1 TiB", _sparse, "x.npz: holds 1099511627776 bytes, more than 4 GiB")


def _saved(room: Room) -> None:
    project.publish(room)
    os.mkfifo(room.folder / "y.npz")


add(
    KIND, "outputs of a run: a FIFO in their place", _saved, code=2, says="y.npz: is a pipe",
    command=("run", MODEL, "--save", "y.npz"), posix=True,
)  # fmt: skip
