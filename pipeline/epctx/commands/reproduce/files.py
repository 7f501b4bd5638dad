"""Two files of one name, from two builds: the same, or what is the first difference."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from epctx.errors import ModelError
from epctx.files import digest
from epctx.files.outputs import SUMS
from epctx.graph.weights import data_file
from epctx.graph.weights.data_file import DataFile

State = Literal["identical", "metadata differs", "payload differs"]


class FileComparison(Struct, frozen=True, kw_only=True):
    """A file of two builds.

    Attributes:
        file: below the outputs' folder, with `/`: `<target>/<group>/<name>`.
        state: metadata: what only describes a model, the way it is serialized, or sums of other
            files; payload: all else. Modes and times of files are no content.
        difference: the first one, in words; None: there is none.
        sizes: in bytes, of both; None: only the other build has it.
    """

    file: str
    state: State
    difference: str | None = None
    sizes: tuple[int | None, int | None] = (None, None)


def compare_folders(old: Path, new: Path) -> tuple[FileComparison, ...]:
    """Every file at or below two folders, in the order of their paths.

    Raises:
        OSError: one cannot be read.
    """
    names = sorted(_names(old) | _names(new))
    return tuple(compare(old / name, new / name, file=name) for name in names)


def compare(old: Path, new: Path, *, file: str) -> FileComparison:
    """Two files, either of which may be missing.

    Raises:
        OSError: one cannot be read.
    """
    sizes = (_size(old), _size(new))
    if None in sizes:
        told = "only the first has it" if sizes[1] is None else "only the second has it"
        return FileComparison(file=file, state="payload differs", difference=told, sizes=sizes)
    if sizes[0] == sizes[1] and digest.of_file(old) == digest.of_file(new):
        return FileComparison(file=file, state="identical", sizes=sizes)
    state, told = _difference(old, new)
    return FileComparison(file=file, state=state, difference=told, sizes=sizes)


def _difference(old: Path, new: Path) -> tuple[State, str]:
    if old.name == SUMS:
        lines = (set(path.read_text(encoding="utf-8").splitlines()) for path in (old, new))
        changed = sorted({line.partition("  ")[2] for line in set.symmetric_difference(*lines)})
        return "metadata differs", f"sums of {', '.join(changed)}"

    plain = data_file.difference(*(DataFile.open(path).view() for path in (old, new)))
    assert plain is not None
    if old.suffix != ".onnx":
        return "payload differs", plain
    from epctx.graph import diff

    try:
        found = diff.between(old, new)
    except ModelError:
        return "payload differs", plain
    payload = next((each for each in found if each.part != "metadata"), None)
    if payload is not None:
        return "payload differs", str(payload)
    if found:
        return "metadata differs", str(found[0])
    return "metadata differs", f"the same model, otherwise serialized: {plain}"


def _names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
