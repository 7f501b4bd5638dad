"""Files that somebody has mapped for writing."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_map(path: Path) -> Iterator[mmap.mmap]:
    """A map of a file of less than a page, which was written to: its page is dirty, so that it can
    be written to again without a trace until it is written back.
    """
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapped:
        mapped[:1] = mapped[:1]
        yield mapped
