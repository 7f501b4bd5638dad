"""Models that are broken: each is refused when it is loaded."""

from __future__ import annotations

from tests.hostile import project
from tests.hostile.table import Room, add, row

KIND = "broken model"


@row(KIND, "empty file", code=4, says="a.onnx")
def _(room: Room) -> None:
    project.replace_model(room, b"")


@row(KIND, "no file", code=4, says="a.onnx")
def _(room: Room) -> None:
    (room.folder / "a.onnx").unlink()


def _cut(part: float) -> None:
    def make(room: Room) -> None:
        path = room.folder / "a.onnx"
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * part)])

    add(KIND, f"cut at {part:.0%}", make, code=4, says="a.onnx")


for each in (0.01, 0.25, 0.5, 0.75, 0.99):
    _cut(each)
