"""Compositions and partitions made to go wrong: names, circles, sizes, parts that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

from tests.hostile.table import Room, add
from tests.kit import compositions, onnx_text
from tests.kit.compositions import PARTS

KIND = "compositions"
LINES = "n\u2028::error::owned\x0c\x1b[2J"


def composed(
    name: str, compose: Mapping[str, object], code: int, says: str,
    spoil: Callable[[Path], object] = lambda folder: None,
) -> None:  # fmt: skip
    """A row: this `compose`; `spoil` gets the folder with the parts' sources."""

    def make(room: Room) -> None:
        compositions.project(room.folder, compose)
        spoil(room.folder)

    add(KIND, name, make, code=code, says=says)


def parts(**changes: object) -> dict[str, object]:
    """The composition `whole` with other parts."""
    return {"whole": {"parts": {**PARTS, **changes}}}


def output(name: str) -> dict[str, object]:
    """The composition `whole` with an output of this name."""
    return {"whole": {"parts": PARTS, "outputs": {name: {"part": "head", "output": "logits"}}}}


composed("its name a path", {"../whole": {"parts": PARTS}}, 3, "../whole")
composed("its name reserved on Windows", {"NUL": {"parts": PARTS}}, 3, "NUL")
composed("a part's name a path", parts(**{"../../x": {"model": "head"}}), 3, "../../x")
composed("a prefix of 5000 characters", parts(head={"prefix": "p" * 5000}), 3, "prefix")
composed("a prefix of lines and commands", parts(head={"prefix": LINES}), 3, "prefix")
composed(
    "a part that takes what it makes",
    parts(body={"inputs": {"hidden": {"part": "body", "output": "features"}}}),
    3,
    '"body" does not run before body',
)
composed(
    "parts that take from each other",
    parts(encoder={"inputs": {"image": {"part": "head", "output": "logits"}}}),
    3,
    '"head" does not run before encoder',
)
composed(
    "an output that its part does not make",
    {"whole": {"parts": PARTS, "outputs": {"x": {"part": "head", "output": LINES}}}},
    3,
    "whole",
)
composed("an output of lines and commands", output(LINES), 0, "whole@default: verified")
composed(
    "300 parts, of which each is the same model",
    {"whole": {"parts": {f"p{n}": {"model": "body", "prefix": f"p{n}_"} for n in range(300)}}},
    3,
    "whole",
)
composed(
    "parts of shapes that do not fit",
    {"whole": {"parts": PARTS}},
    4,
    "whole",
    lambda folder: compositions.save(folder, "head", "features", "logits", width=8),
)


def _lattice(room: Room, *, rungs: int) -> None:
    """Each node that the EP takes feeds the next both directly and over one that it leaves: any
    two of its nodes in one partition would wait for each other."""
    compositions.project(room.folder, {})
    lines, last = [], "features"
    for number in range(rungs):
        left, right, joined = f"l{number}", f"r{number}", f"j{number}"
        lines += [f"{left} = Tanh({last})", f"{right} = Relu({left})"]
        lines.append(f"{joined} = Add({left}, {right})")
        last = joined
    body = "\n".join((*lines, f"logits = Tanh({last})"))
    model = onnx_text.proto(f"lattice (float[1,8] features) => (float[1,8] logits) {{ {body} }}")
    onnx.save(model, room.folder / "body.onnx")


add(
    KIND,
    "a lattice in which any two joined partitions are a cycle",
    lambda room: _lattice(room, rungs=60),
    code=0,
    says="middle@default: verified",
    command=("build", "m.yaml", "--jobs", "1", "--only", "middle"),
)
