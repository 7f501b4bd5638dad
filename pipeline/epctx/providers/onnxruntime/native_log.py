"""What native code writes to stderr while it works, read back to be quoted.

ONNX Runtime tells most reasons only there (real-eps.md section 9). A worker's stderr is a file
(design section 3); where it is a terminal or a pipe there is nothing to read back.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import sys
from pathlib import Path
from typing import Final

from msgspec import Struct

from epctx import limits

if sys.platform == "win32":
    import msvcrt

if sys.platform != "win32":
    import fcntl

_STDERR: Final = 2
_ERROR: Final = re.compile(r"\[E:onnxruntime:[^,]*, (?P<place>[^\]]*)\] (?P<words>.*)")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


class Mark(Struct, frozen=True, kw_only=True):
    """A place in the log."""

    path: Path | None
    position: int = 0

    @classmethod
    def here(cls) -> Mark:
        """The log's present end."""
        path = _path()
        return cls(path=path, position=path.stat().st_size if path else 0)

    def text(self) -> str:
        """What was logged since, at most limits.LOG_BYTES of it, without colours."""
        if self.path is None:
            return ""
        with self.path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(self.position, size - limits.LOG_BYTES.value))
            return _COLOUR.sub("", stream.read().decode(errors="replace"))

    def errors(self) -> list[str]:
        """The errors that ONNX Runtime and its EPs logged since, each once, without time."""
        found = (match["words"].strip() for match in _ERROR.finditer(self.text()))
        return list(dict.fromkeys(words for words in found if words))


def _path() -> Path | None:
    """The file that stderr is, if it is one."""
    try:
        if not stat.S_ISREG(os.fstat(_STDERR).st_mode):
            return None
        if sys.platform == "win32":
            return Path(_windows_path())
        if sys.platform == "darwin":
            return Path(_macos_path())
        return Path(f"/proc/self/fd/{_STDERR}").resolve(strict=True)
    except OSError:
        return None


if sys.platform == "win32":

    def _windows_path() -> str:

        buffer = ctypes.create_unicode_buffer(32768)
        handle = ctypes.c_void_p(msvcrt.get_osfhandle(_STDERR))
        final_path = ctypes.windll.kernel32.GetFinalPathNameByHandleW
        if not final_path(handle, buffer, len(buffer), 0):
            raise OSError("stderr has no path")
        return buffer.value


if sys.platform == "darwin":

    def _macos_path() -> str:

        longest = 1024  # sys/syslimits.h: PATH_MAX, which F_GETPATH fills in at most
        path = fcntl.fcntl(_STDERR, fcntl.F_GETPATH, bytes(longest))
        return os.fsdecode(path.rstrip(b"\0"))
