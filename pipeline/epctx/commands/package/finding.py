"""Which folders are model packages."""

from __future__ import annotations

from pathlib import Path

from epctx.commands.package.form import MANIFEST
from epctx.manifest import GENAI_CONFIG


def is_package(folder: Path) -> bool:
    """Whether a folder is, or is meant to be, a model package."""
    return (folder / MANIFEST).is_file() and not (folder / GENAI_CONFIG).is_file()
