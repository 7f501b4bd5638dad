"""Which folders are model packages."""

from __future__ import annotations

from pathlib import Path

from epctx.commands.package.form import MANIFEST
from epctx.files import listing
from epctx.manifest import GENAI_CONFIG


def is_package(folder: Path) -> bool:
    """Whether a folder is, or is meant to be, a model package."""
    return (folder / MANIFEST).is_file() and not (folder / GENAI_CONFIG).is_file()


def below(folder: Path) -> list[Path]:
    """The packages at or below a folder, in order; not those inside of packages.

    Raises:
        OSError: a folder cannot be read.
    """
    if is_package(folder):
        return [folder]
    held = listing.below(folder, into=lambda inner: not is_package(inner))
    return sorted(e for e in held if listing.is_folder(e) and is_package(e))
