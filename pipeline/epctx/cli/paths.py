"""Checks of paths on the command line: a missing one is a usage error (exit 2)."""

from __future__ import annotations

import errno
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

from epctx.commands.options import Existing, Written
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.files.regular import absent

_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})


def require(parameters: Sequence[inspect.Parameter], values: Mapping[str, object]) -> None:
    """Require the marked paths of a command.

    Raises:
        UsageError: one that is marked, or the folder of one, does not exist.
    """
    for parameter in parameters:
        given = values.get(parameter.name)
        for path in given if isinstance(given, list) else [given]:
            for mark in get_args(parameter.annotation):
                if isinstance(path, Path):
                    _require(path, mark)


def _require(path: Path, mark: object) -> None:
    if isinstance(mark, Existing) and _is_absent(path):
        raise _absent(path, mark)
    if isinstance(mark, Written) and _is_absent(path.parent):
        what = f"there is no folder {path.parent.as_posix()}"
        remedy = "make the folder, or write it elsewhere"
        raise UsageError(
            "cannot be written",
            file=path.as_posix(),
            why=what,
            remedy=remedy,
            code=Code.NO_SUCH_PATH,
        )


def _is_absent(path: Path) -> bool:
    """Tell whether nothing is there; a path that cannot be looked at is left to the command."""
    try:
        path.stat()
    except OSError as error:
        return error.errno in _ABSENT
    return False


def _absent(path: Path, mark: Existing) -> UsageError:
    file = path.as_posix()
    try:
        if path.is_symlink():
            what = "is a link to what does not exist"
            return _told(what, file, "correct the link")
        found = absent(path)
    except OSError:  # a name that is too long
        return _told("does not exist", file, mark.otherwise)
    remedy = mark.otherwise if found.remedy == Existing().otherwise else found.remedy
    return _told(found.what, file, remedy)


def _told(what: str, file: str, remedy: str) -> UsageError:
    return UsageError(what, file=file, remedy=remedy, code=Code.NO_SUCH_PATH)
