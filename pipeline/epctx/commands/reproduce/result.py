"""Result of `epctx reproduce`, and the comparison of two folders of outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ModelError, UsageError
from epctx.files import digest
from epctx.files.outputs import SUMS
from epctx.graph.weights import data_file
from epctx.graph.weights.data_file import DataFile
from epctx.lockfile.differences import Difference
from epctx.text import Brief, did_you_mean

State = Literal["identical", "metadata differs", "payload differs"]


class FileComparison(Struct, frozen=True, kw_only=True):
    """A file of two builds.

    Attributes:
        file: below the outputs' folder, with `/`: `<target>/<group>/<name>`.
        state: metadata: what only describes a model, the way it is serialized, or sums of other
            files; payload: all else. Modes and times of files are no content.
        difference: the first difference in words; None if there is none.
        sizes: in bytes, of both; None if only the other build has the file.
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


VariationName = Literal[
    "path", "environment", "exec-path", "home", "locale", "time-zone", "hash-seed", "umask",
    "time", "file-order", "file-times", "cores", "jobs", "user", "host-name",
]  # fmt: skip
VARIATIONS: tuple[VariationName, ...] = get_args(VariationName)
"""Those of reproducible-builds.org's reprotest that a build of epctx can be given, and its own:
hash-seed, file-times, jobs."""

Verdict = Literal["no lock", "the same", "the same outputs", "made on another host", "differs"]


def variations_of(names: Sequence[str] | None) -> tuple[VariationName, ...]:
    """The variations of these names; all of them for None.

    Raises:
        UsageError: there is none of a name.
    """
    if names is None:
        return VARIATIONS
    for name in names:
        if name not in VARIATIONS:
            raise UsageError(
                f'"{name}" is nothing that can be varied',
                remedy=did_you_mean(name, VARIATIONS),
                code=Code.NO_SUCH_CHOICE,
            )
    return tuple(known for known in VARIATIONS if known in names)


class Variation(Struct, frozen=True, kw_only=True):
    """Variations between the two builds, in the build and in its workers.

    Attributes:
        first: what it was in the first build, for people.
        second: likewise; the same as `first` where it was not varied.
        obstacle: why it was not varied; None if it was.
    """

    name: VariationName
    first: str
    second: str
    obstacle: str | None = None


class Reproduction(Brief, frozen=True, kw_only=True):
    """Two builds, compared.

    Attributes:
        name: the manifest's.
        reproducible: every file and the lock are the same in both builds, and the lock beside the
            manifest does not say otherwise.
        files: every file of the outputs.
        differences: between the locks of both builds.
        causes: what each makes a build differ by itself, where that was looked for; `nothing`: two
            builds under the same circumstances differ.
        known: what the EPs of groups whose payload differs say of themselves.
        lock: what the lock beside the manifest says of the first build. `the same outputs`: of
            another toolchain or sources, which gave the same bytes.
        lock_differences: between that lock and the first build.
        seconds: wall time of each build.
    """

    name: str
    reproducible: bool
    variations: tuple[Variation, ...]
    files: tuple[FileComparison, ...]
    differences: tuple[Difference, ...] = ()
    causes: tuple[VariationName | Literal["nothing"], ...] = ()
    known: tuple[str, ...] = ()
    lock: Verdict = "no lock"
    lock_differences: tuple[Difference, ...] = ()
    seconds: tuple[float, float] = (0.0, 0.0)
