"""What the runner and its workers say to each other: one JSON line a message."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import msgspec

from epctx.errors import EpctxError

REPORT = "report it"
"""The remedy of a bug, before it is known which log has the traceback."""


class Message(msgspec.Struct, omit_defaults=True):
    """One line: a `job` of a `kind` (its class) to the worker; one of the others back."""

    kind: str = ""
    job: msgspec.Raw = msgspec.Raw()
    started: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: WorkerError | None = None


class WorkerError(msgspec.Struct):
    """An error on its way to the parent: the class of the error tree by name, and its words."""

    kind: str
    what: str
    remedy: str
    where: str | None = None
    why: str | None = None


def restore(error: WorkerError, *, log: Path) -> EpctxError:
    """The error that a worker reported, as its own class; of a bug, `log` has the traceback."""
    classes = {cls.__name__: cls for cls in _tree(EpctxError)}
    cls = classes.get(error.kind, EpctxError)
    remedy = f"report it with the log file {log}" if cls is EpctxError else error.remedy
    return cls(error.what, where=error.where, why=error.why, remedy=remedy)


def _tree(cls: type[EpctxError]) -> list[type[EpctxError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _tree(sub))]


def report(error: BaseException) -> WorkerError:
    """An error as it goes to the parent; the traceback of a bug goes to the worker's log."""
    if isinstance(error, EpctxError):
        return WorkerError(
            kind=type(error).__name__,
            what=error.what,
            remedy=error.remedy,
            where=error.where,
            why=error.why,
        )
    traceback.print_exception(error, file=sys.stderr)
    return WorkerError(
        kind="EpctxError",
        what="unexpected error, a bug in epctx",
        why=f"{type(error).__name__}: {error}",
        remedy=REPORT,
    )
