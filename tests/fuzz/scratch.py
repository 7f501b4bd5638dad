"""Where targets put the files that they read: in memory, where there is such a folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")
_SCRATCH: Final = tempfile.TemporaryDirectory(
    prefix="epctx-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None
)
FOLDER: Final = Path(_SCRATCH.name)


def written(name: str, data: bytes) -> Path:
    """A new file of these bytes, at a path below `FOLDER`."""
    path = FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # the former one may be mapped still
    path.write_bytes(data)
    return path
