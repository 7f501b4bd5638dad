"""Names that would be markup, commands or lines of their own in what `verify --junit` and `diff`
write, and things in the place of what they write or read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from junitparser import JUnitXml

from tests.hostile import project
from tests.hostile.table import Room, add

MARKUP = '"/><failure message="no">]]></failure><!--&xxe;'
LINES = "n\n::error::owned\u2028::error::owned\x85::error::owned\x0c::error::owned ##[error]owned"
BINDING = "=cmd|'/C calc'!A0"
"""What a spreadsheet would take for a formula, in a table made of the results."""
NAMES = {
    "markup": MARKUP,
    "lines and commands": LINES,
    "no XML": "\x00\ufffe\x1b[2J",
    "a formula": BINDING,
}
MODEL = "dist/m/default/g/a_ctx.onnx"
JUNIT = ("verify", "dist", "--junit", "found.xml")


def _renamed(room: Room, name: str) -> Path:
    """Nodes, their outputs and the graph of a published model have this name, and a number."""
    group = project.publish(room)
    path = group / "a_ctx.onnx"
    proto = onnx.load(path, load_external_data=False)
    proto.graph.name = name
    for node in proto.graph.node:
        node.name = name
    for value in proto.graph.output:
        value.name = name
    path.write_bytes(proto.SerializeToString())
    return group


def _is_sound(room: Room) -> None:
    """What was written is XML with the suites and cases of the findings, and nothing else in it."""
    found = JUnitXml.fromfile(str(room.folder / "found.xml"))
    cases = [case for suite in found for case in suite]
    assert len(list(found)) == 2 and found.tests == len(cases) > 5
    told = [result for case in cases for result in case.result]
    assert len(told) == found.failures + found.skipped
    assert not any(case.classname is None or case.name == "no" for case in cases)


def _copied(room: Room, name: str) -> None:
    _renamed(room, name)
    shutil.copytree(room.folder / "dist", room.folder / "other")
    shutil.rmtree(room.folder / "dist")
    project.publish(room)


for _name, _text in NAMES.items():
    add(
        "JUnit", f"names of {_name}", partial(_renamed, name=_text), code=7,
        says="NOT verified", command=JUNIT, after=_is_sound, leaves=("found.xml",),
    )  # fmt: skip
    add(
        "diff", f"names of {_name}", partial(_copied, name=_text), code=0,
        says="differ", command=("diff", "dist/m", "other/m"),
    )  # fmt: skip


def junit(name: str, make: Callable[[Path], object], code: int, says: str, **rest: Any) -> None:
    """A row: something is where the results are to be written."""

    def put(room: Room) -> None:
        project.publish(room)
        make(room.folder / "found.xml")

    add("JUnit", name, put, code=code, says=says, command=JUNIT, posix=True, **rest)


def _linked(path: Path) -> None:
    path.symlink_to("../outside/secret")


junit("a folder in its place", Path.mkdir, 2, "found.xml: is a folder")
junit("a FIFO in its place", os.mkfifo, 2, "found.xml: is a pipe")
junit("a link to a file outside in its place", _linked, 0, "verified", leaves=("found.xml",))


def other(name: str, make: Callable[[Path], object], code: int, says: str) -> None:
    """A row: something is what is compared with."""

    def put(room: Room) -> None:
        project.publish(room)
        make(room.folder / "other")

    add("diff", name, put, code=code, says=says, command=("diff", "dist/m", "other"), posix=True)


other("a FIFO", os.mkfifo, 2, "other: is a pipe")
other("a link to /dev/zero", lambda path: path.symlink_to("/dev/zero"), 2, "other: is a device")
other("a link to itself", lambda path: path.symlink_to("other"), 2, "other")
other("an empty folder", Path.mkdir, 2, "other")
other("a name that is not there", lambda path: None, 2, "other")
