"""What the runner and its workers say to each other: one JSON line a message."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from epctx import codec
from epctx.actions.action import Action
from epctx.actions.kinds import KINDS
from epctx.errors import EpctxError, Failure, InvalidManifest, ManifestError

REPORT = "report it"
"""The remedy of a bug, before it is known which log has the traceback."""


class EncodedAction(msgspec.Struct):
    """An action: its class, by name, and its fields."""

    kind: str
    action: msgspec.Raw


class Message(msgspec.Struct, omit_defaults=True):
    """One line: a `job`, an action after the other, to the worker; one of the others back.

    A result is that of the first action that had none before. The job ends with `done`, the largest
    size of the process so far in bytes, or with an error.
    """

    job: tuple[EncodedAction, ...] = ()
    started: msgspec.Raw = msgspec.Raw()
    native: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    done: int | None = None
    error: Failure | None = None


def encode(job: Sequence[Action[Any]]) -> tuple[EncodedAction, ...]:
    """A job as it crosses to a worker."""
    return tuple(
        EncodedAction(kind=type(action).__name__, action=msgspec.Raw(codec.encode(action)))
        for action in job
    )


def actions(message: Message) -> list[Action[Any]]:
    """The job of a message.

    Raises:
        ValueError: there is no such action; it has other fields.
    """
    found: list[Action[Any]] = []
    for each in message.job:
        kind = KINDS.get(each.kind)
        if kind is None:
            raise ValueError(f"no such action: {each.kind}")
        found.append(codec.decode(bytes(each.action), kind))
    return found


def restore(failure: Failure, *, log: Path) -> EpctxError:
    """The error that a worker reported, as its own class; of a bug, `log` has the traceback."""
    cls = {cls.__name__: cls for cls in _tree(EpctxError)}.get(failure.kind, EpctxError)
    if issubclass(cls, InvalidManifest):  # whose violations stay behind
        cls = ManifestError
    return cls.of(
        failure, remedy=f"report it with the log file {log}" if cls is EpctxError else None
    )


def _tree(cls: type[EpctxError]) -> list[type[EpctxError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in _tree(sub))]


def report(error: BaseException) -> Failure:
    """An error as it goes to the parent; the traceback of a bug goes to the worker's log."""
    if isinstance(error, EpctxError):
        return error.failure
    traceback.print_exception(error, file=sys.stderr)
    why = f"{type(error).__name__}: {error}"
    return EpctxError("unexpected error, a bug in epctx", why=why, remedy=REPORT).failure
