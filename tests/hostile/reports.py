"""Build reports that somebody else wrote, and `report` and `diff` read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile import project
from tests.hostile.table import Room, add

KIND, REPORT = "build reports", "dist/m.build.json"
COMMANDS = (("report", REPORT), ("diff", REPORT, "m.lock.yaml"))


def instead(name: str, make: Callable[[Path], object], says: str, **rest: Any) -> None:
    """Rows: something else is in the report's place."""

    def put(room: Room) -> None:
        project.publish(room)
        path = room.folder / REPORT
        path.unlink()
        make(path)

    for command in COMMANDS:
        options: dict[str, object] = {"code": 2, "says": says, "command": command, **rest}
        add(KIND, f"{name}, `{command[0]}`", put, **options)  # type: ignore[arg-type]


def changed(name: str, change: Callable[[dict[str, Any]], object], says: str) -> None:
    """Rows: the report says something else."""

    def write(path: Path) -> None:
        document = json.loads((project.built() / REPORT).read_text(encoding="utf-8"))
        change(document)
        path.write_text(json.dumps(document), encoding="utf-8")

    instead(name, write, says)


instead("a FIFO", os.mkfifo, "is a pipe", posix=True)
instead("a folder", Path.mkdir, "dist/m.build.json: ")
instead("a link to /dev/zero", lambda p: p.symlink_to("/dev/zero"), "is a device", posix=True)
instead("a sparse file of 1 TiB", lambda p: _sparse(p), "is larger than 512 MiB", posix=True)
instead("empty", Path.touch, "is not a build report")
instead("not UTF-8", lambda p: p.write_bytes(b"\xff\xfe"), "is not a build report")
instead(
    "nested 100,000 deep",
    lambda p: p.write_bytes(b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "is not a build report",
)
instead(
    "a number of 10,000 digits",
    lambda p: p.write_bytes(b'{"schema_version": ' + b"9" * 10_000 + b"}"),
    "is not a build report",
)
changed("its name a path", lambda d: d.update(name="../../outside/x"), "the name has the character")
changed("its name of 5000 characters", lambda d: d.update(name="m" * 5000), "the name is longer")
changed("a folder outside", lambda d: _group(d).update(folder="../../outside"), "its folder starts")
changed("an absolute folder", lambda d: _group(d).update(folder="/etc"), "its folder is empty")
changed("a folder with NUL", lambda d: _group(d).update(folder="a\0b"), "its folder has the char")
changed(
    "a file outside",
    lambda d: _group(d)["files"][0].update(name="../../../outside/x.bin"),
    "the name of a file has the character",
)
changed(
    "a digest that is a path",
    lambda d: _group(d)["files"][0]["blake3"].update(hex="../../outside/secret"),
    "is not a digest",
)
changed("nodes of no operator", lambda d: _outline(d).update(op_types=[]), "has no operator")
changed("nodes of no partition", lambda d: _model(d).update(partitions=[]), "in no partition")
changed("a cycle", lambda d: _outline(d)["predecessors"].__setitem__(0, [9]), "topological order")
changed("fewer names than nodes", lambda d: _outline(d)["names"].pop(), "different lengths")


def _group(document: dict[str, Any]) -> dict[str, Any]:
    group: dict[str, Any] = document["groups"][0]
    return group


def _model(document: dict[str, Any]) -> dict[str, Any]:
    model: dict[str, Any] = _group(document)["models"][0]
    return model


def _outline(document: dict[str, Any]) -> dict[str, Any]:
    outline: dict[str, Any] = _model(document)["outline"]
    return outline


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def _of_markup(room: Room) -> None:
    """Names as they would end the page's script and start another."""
    project.publish(room)
    path = room.folder / REPORT
    document = json.loads(path.read_text(encoding="utf-8"))
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    _model(document)["name"] = hostile
    _outline(document)["names"] = [hostile] * len(_outline(document)["names"])
    path.write_text(json.dumps(document), encoding="utf-8")


def _is_escaped(room: Room) -> None:
    page = (room.folder / "dist" / "m.report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and "<img src=x" not in page


add(
    KIND,
    "names of markup",
    _of_markup,
    code=0,
    says="dist/m.report.html",
    command=("report", REPORT),
    after=_is_escaped,
    leaves=("dist/m.report.html",),
)
