"""A file put in place of another whole or not at all: written beside it, flushed, renamed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from epctx.files.outputs import writing


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content is `path` when all is written; if that fails, `path` is as it was.

    Raises:
        OSError: the system refuses.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # what is there is not followed
        with temporary.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # what is in the way is told, not what comes of it
            temporary.unlink()
        raise


def replace(path: Path, content: bytes) -> None:
    """Put a small file in place of another.

    Raises:
        StorageError: the system refuses.
    """
    with writing(path), replacing(path) as stream:
        stream.write(content)
