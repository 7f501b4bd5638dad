"""Paths of the manifest: relative to it, and inside its folder with links followed."""

from __future__ import annotations

import contextlib
import glob
import re
import stat
import sys
from functools import cached_property
from pathlib import Path, PureWindowsPath

from msgspec import Struct

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_GLOB = re.compile(r"[*?\[]")


class Places(Struct, frozen=True, kw_only=True, dict=True):
    """Where paths resolve from.

    Attributes:
        folder: the manifest's, absolute.
        allow_outside: paths may lead out of it.
        partial: files may be missing, as in a checkout without them.
    """

    folder: Path
    allow_outside: bool = False
    partial: bool = False

    @cached_property
    def _resolved(self) -> Path:
        return self.folder.resolve()

    @cached_property
    def _inside(self) -> dict[Path, bool]:
        """Folders whose links were followed, and whether they lie in the manifest's folder."""
        return {}

    def _leads_inside(self, path: Path) -> bool:
        """Whether a path stays in the manifest's folder; a folder is asked once for all its files.

        Raises:
            OSError, RuntimeError, ValueError: it cannot be followed.
        """
        with contextlib.suppress(OSError):
            if path.name != ".." and not stat.S_ISLNK(path.lstat().st_mode):
                folder = path.parent
                if folder not in self._inside:
                    self._inside[folder] = folder.resolve().is_relative_to(self._resolved)
                if self._inside[folder]:
                    return True
        return path.resolve().is_relative_to(self._resolved)

    def lacks(self, path: Path) -> bool:
        """Whether a file is missing that may be."""
        return self.partial and not path.exists()

    def absolute(self, text: str) -> Path:
        """The path that `text` means, links not followed."""
        return self.folder / text

    def files(self, pattern: str) -> tuple[Path, ...]:
        """The files that a pattern matches, sorted; the path itself if it is no pattern."""
        if not _GLOB.search(pattern):
            return (self.absolute(pattern),)
        # Path.glob takes no absolute pattern.
        found = glob.glob(pattern, root_dir=self.folder, recursive=True)  # noqa: PTH207
        paths = sorted((self.absolute(text) for text in found), key=Path.as_posix)
        return tuple(path for path in paths if path.is_file())

    def problem(self, text: str) -> tuple[str, str] | None:
        """What keeps a path from being used, and the remedy; None if nothing does."""
        written = _spelling(text)
        if written is not None:
            return written
        if self.allow_outside:
            return None
        inside = "keep it inside the manifest's folder"
        if text.startswith("/") or (":" in text and PureWindowsPath(text).drive):
            return "is an absolute path", inside
        return self.outside(self.absolute(text), inside)

    def outside(self, path: Path, remedy: str) -> tuple[str, str] | None:
        """What is wrong with where `path` leads, links followed."""
        try:
            inside = self._leads_inside(path)
        except UnicodeEncodeError:
            encoding = sys.getfilesystemencoding()
            what = f"cannot be named where file names are {encoding}"
            return what, "set the environment variable PYTHONUTF8=1, or another locale"
        except (OSError, RuntimeError, ValueError):
            return "cannot be followed, it loops or is too long", "check the links in it"
        if not inside:
            return "leads out of the manifest's folder", remedy
        return None


def _spelling(text: str) -> tuple[str, str] | None:
    if _URL.match(text):
        return "is a URL", "download the file and name its path"
    if "\\" in text:
        return "has a backslash", f"write it with /: {text.replace(chr(92), '/')}"
    if text.startswith("~"):
        return "starts with ~, which is not expanded", "write the path out"
    return None
