"""Check paths on the command line: a missing path is a usage error (exit code 2)."""

from __future__ import annotations

import contextlib
import errno
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

from epctx.arguments import Place
from epctx.commands.options import Existing, Written
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.files.regular import absent

_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})


def require(
    parameters: Sequence[inspect.Parameter],
    values: Mapping[str, object],
    notify: Callable[[str], None],
) -> None:
    """Check that the marked paths of a command exist, and are what the command takes.

    Args:
        notify: called with a message for each pipe, which may have the command wait.

    Raises:
        UsageError: an input, or the folder of an output, does not exist; something else is there.
    """
    for parameter in parameters:
        value = values.get(parameter.name)
        for path in value if isinstance(value, list) else [value]:
            for mark in get_args(parameter.annotation):
                if isinstance(path, Path) and isinstance(mark, Place):
                    kind = mark.check(path)
                    _require(path, mark)
                    if kind == "pipe":
                        notify(f"reading {path.as_posix()}, a pipe, to its end; Ctrl-C ends it")


def _require(path: Path, mark: Place) -> None:
    if isinstance(mark, Existing) and _is_absent(path):
        raise _absent(path, mark)
    if isinstance(mark, Written) and _is_absent(path.parent):
        raise UsageError(
            "cannot be written",
            file=path.as_posix(),
            why=f"there is no folder {path.parent.as_posix()}",
            remedy="create the folder, or name another path",
            code=Code.NO_SUCH_PATH,
        )


def _is_absent(path: Path) -> bool:
    """Tell whether a path is missing; the command itself reports any other fault of the path."""
    try:
        path.stat()
    except OSError as error:
        return error.errno in _ABSENT
    return False


def _absent(path: Path, mark: Existing) -> UsageError:
    what, remedy = "does not exist", mark.otherwise
    with contextlib.suppress(OSError):  # the name is too long
        reason = absent(path)
        what, remedy = reason.what, reason.remedy
    remedy = mark.otherwise if remedy == Existing().otherwise else remedy
    return UsageError(what, file=path.as_posix(), remedy=remedy, code=Code.NO_SUCH_PATH)
