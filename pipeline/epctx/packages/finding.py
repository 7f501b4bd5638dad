"""Which folders are model packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from epctx.manifest import GENAI_CONFIG
from epctx.packages import MANIFEST


def is_package(folder: Path) -> bool:
    """Whether a folder is, or is meant to be, a model package."""
    return (folder / MANIFEST).is_file() and not (folder / GENAI_CONFIG).is_file()


def below(folder: Path) -> Iterator[Path]:
    """The packages at or below a folder, in order; not those inside of packages."""
    if is_package(folder):
        yield folder
        return
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            yield from below(entry)
