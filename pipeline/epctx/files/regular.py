"""Opens regular files so that the checked file is the one that is read."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from epctx import limits
from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.files import entries
from epctx.files.identity import of_content, show_writes
from epctx.text import nearest_file

if sys.platform != "win32":
    import resource

_T = TypeVar("_T")
_SEARCHED: Final = 10_000
"""Greatest number of files that a misspelt name is compared with."""


def open_regular(path: Path, *, where: str) -> tuple[Path, int]:
    """Open a regular file for reading; return its real path and a descriptor of the same file.

    Raises:
        ModelError: the file is missing, not regular, not readable, or was replaced meanwhile.
    """
    try:
        before = path.stat()
        descriptor = patiently(lambda: entries.opened(path))
    except entries.Irregular as error:
        raise ModelError(
            error.reason, where=where, remedy="name a regular file", code=Code.NOT_REGULAR
        ) from None
    except OSError as error:
        raise _unopened(error, where) from error
    try:
        real = _real(path, descriptor, before)
        if real is None:
            raise _exchanged(where)
        with ModelError.if_refused("cannot be opened", where=where, remedy="check the disk"):
            show_writes(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return real, descriptor


def _exchanged(where: str) -> ModelError:
    return ModelError(
        "was exchanged while it was opened",
        where=where,
        remedy="build again when nothing writes to the folder",
    )


def _unopened(error: OSError, where: str) -> ModelError:
    return ModelError(
        "cannot be opened",
        where=where,
        why=error.strerror or str(error),
        remedy="check the path",
        code=Code.MODEL_MISSING,
    )


def changed(path: Path) -> ModelError:
    """Return the error for a source that has changed since it was hashed."""
    return ModelError(
        "was changed while it was built",
        file=str(path),
        remedy="build again when nothing writes to it",
    )


def require_bounded(size: int, *, where: str) -> None:
    """Refuse to read a whole file of this size if it is too large; a sparse file may have any size.

    Raises:
        ModelError: the file is too large.
    """
    if size > limits.FILE_BYTES.value:
        raise ModelError(
            f"has {size:,} bytes, more than {limits.FILE_BYTES}",
            where=where,
            remedy=limits.FILE_BYTES.remedy,
            code=Code.MODEL_TOO_LARGE,
        )


def absent(path: Path) -> ModelError:
    """Return the error for a missing model file; the remedy suggests a file with a similar name."""
    what, folder = "does not exist", path.parent
    if os.path.islink(path):  # noqa: PTH114 - never raises
        what = f"is a broken link to {path.readlink().as_posix()}"
        remedy = "correct the link"
    elif not folder.is_dir():
        remedy = f"there is no folder {folder}: check the path"
    else:
        names = sorted(entry.name for entry in itertools.islice(folder.iterdir(), _SEARCHED))
        near = nearest_file(path.name, [name for name in names if name != path.name])
        remedy = f"did you mean {near!r}?" if near else "check the path"
    return ModelError(what, file=str(path), remedy=remedy, code=Code.MODEL_MISSING)


def _real(path: Path, descriptor: int, before: os.stat_result) -> Path | None:
    """Return the real path of an open file; None if the file was replaced or removed."""
    status = os.fstat(descriptor)
    if not os.path.samestat(before, status):
        return None
    if sys.platform == "linux" and _opened(descriptor) == str(path):
        return path
    try:
        real = path.resolve(strict=True)
        return real if of_content(status) == of_content(real.stat()) else None
    except (OSError, RuntimeError):  # RuntimeError: a loop of links, before Python 3.13
        return None


def _opened(descriptor: int) -> str | None:
    """Return the real path of an open file from /proc; None if /proc does not have it."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - of every file, as text
    except OSError:
        return None


def patiently(call: Callable[[], _T]) -> _T:
    """Call a function; if it reaches the limit of open files, raise the limit and call it again."""
    try:
        return call()
    except OSError as error:
        if error.errno != errno.EMFILE or not _raise_file_limit():
            raise
        return call()


def _raise_file_limit() -> bool:
    if sys.platform != "win32":  # Windows has no such limit on handles
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # macOS refuses an infinite hard limit
        with contextlib.suppress(ValueError, OSError):
            if soft != hard:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                return True
    return False
