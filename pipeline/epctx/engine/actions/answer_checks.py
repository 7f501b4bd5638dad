"""Whether a worker's answer can be true: a process in which an SDK has run may say anything.

What it says of a file's content is held against the file when that is verified. Here it is held to
what was asked for, before its names become paths and places in lists.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from epctx.actions.compile import CompileResult
from epctx.errors import CompileError
from epctx.files import paths
from epctx.files.digest import of_file
from epctx.files.outputs import SUMS, OutputFile
from epctx.manifest import ModelGroup


def check_compiled(
    result: CompileResult, group: ModelGroup, models: Sequence[str], folder: Path
) -> None:
    """Hold the answer of a compile to its job.

    Args:
        models: that were to be compiled, in their order.
        folder: where its files should be.

    Raises:
        CompileError: it cannot be true.
    """
    made = {file.name: file for file in result.output.files}
    places = {str(place) for place in range(len(group.execution_providers))}
    if not made or len(made) < len(result.output.files):
        why = "no file, or one file twice"
    elif not all(_is_there(folder, file) for file in result.output.files):
        why = "files that are not there"
    elif (
        [model.name for model in result.models] != list(models)
        or list(result.output.models) != list(models)
        or len(result.unmatched) != len(models)
    ):
        why = "other models than were to be compiled"
    elif not made.keys() >= set(result.output.models.values()):
        why = "models without a file"
    elif not {part.provider for model in result.models for part in model.partitions} <= places:
        why = "execution providers that the group does not have"
    else:
        return
    raise untrue(why, " and ".join(models))


def check_contents(result: CompileResult, folder: Path) -> None:
    """Hold what the answer says of files to the files: who verified them has made them, too.

    Raises:
        CompileError: it cannot be true.
    """
    told = {file.name: file.blake3 for file in result.output.files}
    names = {path.name for path in folder.iterdir()} - {SUMS}
    if names != told.keys() or any(of_file(folder / name) != told[name] for name in names):
        raise untrue("other files than it wrote", " and ".join(result.output.models))


def _is_there(folder: Path, file: OutputFile) -> bool:
    if not paths.is_bare(file.name):
        return False
    try:
        status = (folder / file.name).lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == file.size


def untrue(why: str, models: str) -> CompileError:
    """Return the error of an answer that cannot be true; `why`: what it told of."""
    return CompileError(
        f"the worker process told of {why}",
        model=models,
        why="its answer cannot be true",
        remedy="an SDK may have written to the process's memory: build with fewer execution "
        "providers to find which one",
    )
