"""Where a page may point to: files that lie beside the report, by relative references."""

from __future__ import annotations

import os
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Final
from urllib.parse import quote

from msgspec import Struct

_SYSTEMS: Final[tuple[type[PurePath], ...]] = (PurePosixPath, PureWindowsPath)


class Links(Struct, frozen=True, kw_only=True):
    """From a page to files.

    Attributes:
        folder: the report's; the groups' folders are below it.
        page: the page's.
    """

    folder: Path
    page: Path

    def to(self, *parts: str) -> str | None:
        """The reference to a file below the report's folder; None: it is not there, or a part
        leads elsewhere on some system: it is absolute, on a drive, or has `..`.

        Every character that means something in a reference is quoted, a colon too: no name makes
        a scheme.
        """
        if any(_leads_elsewhere(part) for part in parts):
            return None
        path = self.folder.joinpath(*parts)
        try:
            if not path.is_file():
                return None
            there = Path(os.path.relpath(path, self.page))
        except (OSError, ValueError):  # a name that no file can have; on Windows, another drive
            return None
        return f"./{quote(os.fsencode(there.as_posix()))}"


def _leads_elsewhere(part: str) -> bool:
    paths = [system(part) for system in _SYSTEMS]
    return any(path.anchor or ".." in path.parts for path in paths)
