"""Whether a published folder still is what was put there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from epctx.cache.digests import FileDigests
from epctx.files import digest
from epctx.files.digest import Digest
from epctx.files.listing import is_folder
from epctx.files.outputs import GOLDEN, SIGNATURE, SUMS, OutputFile, sums


def is_apart(entry: Path) -> bool:
    """Whether it comes and goes by itself: the folder of golden files, a signature."""
    return entry.name == SIGNATURE or (entry.name == GOLDEN and is_folder(entry))


def difference(folder: Path, files: Sequence[OutputFile], digests: FileDigests) -> str | None:
    """How a folder differs from the files that it should have, one clause; None: it does not.

    SHA256SUMS is one more. Of a file of another size nothing is read: it may be of any.
    """
    expected = contents_of(files)
    sizes = {file.name: file.size for file in files} | {SUMS: len(sums(files))}
    try:
        entries = {entry.name: entry for entry in folder.iterdir() if not is_apart(entry)}
    except FileNotFoundError:
        return "it is not published"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    for name in sorted(expected.keys() | entries.keys()):
        if name not in entries:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} does not belong there"
        if entries[name].is_symlink():
            return f"{name} is a link"
        try:
            same = entries[name].stat().st_size == sizes[name]
            content = digests.of(entries[name]) if same else None
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if content != expected[name]:
            return f"{name} was changed"
    return None


def contents_of(files: Sequence[OutputFile]) -> dict[str, Digest]:
    """Every file of a folder, by name, SHA256SUMS too."""
    return {**{file.name: file.blake3 for file in files}, SUMS: digest.of_bytes(sums(files))}
