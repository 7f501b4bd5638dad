"""Files to their place: staged beside it, then moved, those that refer to others last."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epctx.errors import StorageError
from epctx.files.outputs import sync_folder, writing


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A new folder inside `folder`, which is made if it is not there; gone afterwards.

    Raises:
        StorageError: the disk refuses.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=".epctx-", dir=folder)
    with temporary as name:
        yield Path(name)


def move(moves: dict[Path, Path]) -> None:
    """Move files, in order, over what is there.

    Raises:
        StorageError: the disk refuses, or a folder has one of the names.
    """
    for source, target in moves.items():
        with StorageError.if_refused(
            "cannot be written",
            file=str(target),
            remedy="close what has it open, or give another path",
        ):
            source.replace(target)
    for folder in {target.parent for target in moves.values()}:
        sync_folder(folder)
