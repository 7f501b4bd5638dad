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
    """Comparison of one file of two builds.

    Attributes:
        file: path below the output folder, with `/`: `<target>/<group>/<name>`.
        state: kind of difference. Metadata is a model's description, its serialization, or
            checksums of other files. Payload is everything else. File modes and times are not
            compared.
        difference: the first difference in words; None if there is none.
        sizes: sizes in both builds, in bytes; None if a build does not have the file.
    """

    file: str
    state: State
    difference: str | None = None
    sizes: tuple[int | None, int | None] = (None, None)


def compare_folders(old: Path, new: Path) -> tuple[FileComparison, ...]:
    """Compare every file below two folders, in the order of their paths.

    Raises:
        OSError: a file cannot be read.
    """
    names = sorted(_names(old) | _names(new))
    return tuple(compare(old / name, new / name, file=name) for name in names)


def compare(old: Path, new: Path, *, file: str) -> FileComparison:
    """Compare two files, either of which may be missing.

    Raises:
        OSError: a file cannot be read.
    """
    sizes = (_size(old), _size(new))
    if None in sizes:
        difference = "only the first has it" if sizes[1] is None else "only the second has it"
        return FileComparison(
            file=file, state="payload differs", difference=difference, sizes=sizes
        )
    if sizes[0] == sizes[1] and digest.of_file(old) == digest.of_file(new):
        return FileComparison(file=file, state="identical", sizes=sizes)
    state, difference = _difference(old, new)
    return FileComparison(file=file, state=state, difference=difference, sizes=sizes)


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
        divergences = diff.between(old, new)
    except ModelError:
        return "payload differs", plain
    payload = next((each for each in divergences if each.part != "metadata"), None)
    if payload is not None:
        return "payload differs", str(payload)
    if divergences:
        return "metadata differs", str(divergences[0])
    return "metadata differs", f"the same model, serialized differently: {plain}"


def _names(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


VariationName = Literal[
    "path", "environment", "exec-path", "home", "locale", "time-zone", "hash-seed", "umask",
    "time", "file-order", "file-times", "cores", "jobs", "user", "host-name",
]  # fmt: skip
VARIATIONS: tuple[VariationName, ...] = get_args(VariationName)
"""Variations of reproducible-builds.org's reprotest that apply to epctx, and epctx's own.

epctx's own variations are hash-seed, file-times and jobs.
"""

Verdict = Literal["no lock", "the same", "the same outputs", "made on another host", "differs"]


def variations_of(names: Sequence[str] | None) -> tuple[VariationName, ...]:
    """Return the named variations; None selects all.

    Raises:
        UsageError: a name is unknown.
    """
    if names is None:
        return VARIATIONS
    for name in names:
        if name not in VARIATIONS:
            raise UsageError(
                f'"{name}" is not a variation',
                remedy=did_you_mean(name, VARIATIONS),
                code=Code.NO_SUCH_CHOICE,
            )
    return tuple(variation for variation in VARIATIONS if variation in names)


class Variation(Struct, frozen=True, kw_only=True):
    """Variation between the two builds; it applies to the build process and its workers.

    Attributes:
        first: value in the first build, in words.
        second: value in the second build, in words; the same as `first` if it was not varied.
        obstacle: reason why it was not varied; None if it was.
    """

    name: VariationName
    first: str
    second: str
    obstacle: str | None = None


class Reproduction(Brief, frozen=True, kw_only=True):
    """Comparison of two builds.

    Attributes:
        name: name of the manifest.
        reproducible: True if all files and the locks of both builds are equal, and the lock beside
            the manifest does not contradict them.
        files: comparison of every output file.
        differences: differences between the locks of both builds.
        causes: variations that each cause a difference by themselves, if that was tested. `nothing`
            means that two builds under the same circumstances differ.
        known: known sources of differences, as declared by the EPs of groups with different
            payload.
        lock: comparison of the first build with the lock beside the manifest. `the same outputs`
            means the same bytes although toolchain or sources differ.
        lock_differences: differences between that lock and the first build.
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
