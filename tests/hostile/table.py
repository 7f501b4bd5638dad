"""What a row of the table is, and where rows are registered."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

How = Literal["inline", "workers", "process"]
BUILD = ("build", "m.yaml", "--jobs", "1")


@dataclass(frozen=True, kw_only=True)
class Room:
    """A folder of its own for one row; the current folder while its command runs.

    It holds the project of `tests.hostile.project`: `m.yaml`, a group `g` of the model `a.onnx`
    with its weights in `a.data`. Beside it lies what must be let alone.

    Attributes:
        folder: the project's folder.
        outside: a folder beside it, with a file `secret`.
        cache: where the cache will be; it is not there yet.
        environment: variables for the command alone.
    """

    folder: Path
    outside: Path
    cache: Path
    environment: dict[str, str] = field(default_factory=dict)


Make = Callable[[Room], object]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that was tried.

    Attributes:
        kind: the class of fault or input, a heading of the table.
        name: what was tried; unique in its class.
        make: makes it in a room.
        code: the exit code that must come out.
        says: a fragment that stderr or stdout must have, with the thing's name in it.
        command: the command line, without `epctx`.
        how: `inline`: in this process, the jobs of workers too. `workers`: with real worker
            processes. `process`: all in processes of their own, their memory measured.
        after: more to check, when the command has ended.
        leaves: glob patterns, from the project's folder, of files that it may leave or change
            beside those of `running.ALLOWED`.
        seconds: processor time that it may take, with all processes.
        memory: MiB that its processes may take, each; of `how="process"` only.
        posix: what it is made of is not there on Windows.
    """

    kind: str
    name: str
    make: Make
    code: int
    says: str
    command: tuple[str, ...] = BUILD
    how: How = "inline"
    after: Make | None = None
    leaves: tuple[str, ...] = ()
    seconds: float = 20.0
    memory: int = 700
    posix: bool = False

    @property
    def id(self) -> str:
        """Its name in the table and in tests."""
        return f"{self.kind}: {self.name}"

    @property
    def possible(self) -> bool:
        """Whether this system can make it."""
        return not self.posix or os.name == "posix"


ROWS: dict[str, Row] = {}


def add(kind: str, name: str, make: Make, *, code: int, says: str, **rest: Any) -> None:
    """Register a row; `rest` is the other fields of `Row`."""
    row = Row(kind=kind, name=name, make=make, code=code, says=says, **rest)
    assert row.id not in ROWS, f"there are two rows {row.id!r}"
    assert "|" not in name + kind and "\n" not in name + kind, f"{row.id!r} breaks the table"
    ROWS[row.id] = row


def row(kind: str, name: str, *, code: int, says: str, **rest: Any) -> Callable[[Make], Make]:
    """Register the decorated function as what makes a row."""

    def register(make: Make) -> Make:
        add(kind, name, make, code=code, says=says, **rest)
        return make

    return register


# ------------------------------------------------------------------------------------ TABLE.md

TABLE = Path(__file__).parent / "TABLE.md"
_HEAD = """# What was tried, and what happened

Every fault and every bad input that is tried on epctx: in each run of `make test` the first of each
kind and one in eight of the others, in `make soak` the rest. A row passes only if the exit code is
the one written here, the message is, there is a remedy, nothing is left behind, nothing beside the
project was touched, and it was over in time. `python -m tests.hostile` writes this file;
`tests/hostile/test_table.py` holds it.
"""


def line(row: Row, said: str) -> str:
    """A row as the table has it; `said`: the first line of its error."""
    return f"| {row.name} | `{row.command[0]}` | {row.code} | {said} |"


def write(lines: Mapping[str, str]) -> None:
    """Write the table of the rows' lines, by their ids."""
    parts = [_HEAD]
    for kind in sorted({row.kind for row in ROWS.values()}):
        parts += [f"\n## {kind}\n", "| tried | command | exit | said |", "|---|---|---|---|"]
        parts += [lines[row.id] for row in ROWS.values() if row.kind == kind]
    TABLE.write_text("\n".join(parts) + "\n", encoding="utf-8", newline="\n")


def read() -> dict[str, str]:
    """The table's lines by the rows' ids."""
    found: dict[str, str] = {}
    kind = ""
    for text in TABLE.read_text(encoding="utf-8").splitlines() if TABLE.exists() else ():
        if text.startswith("## "):
            kind = text[3:]
        elif text.startswith("| ") and not text.startswith("| tried |"):
            found[f"{kind}: {text[2:].split(' | ', 1)[0]}"] = text
    return found
