"""Messages between the engine and its workers: one JSON line each."""

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
from epctx.errors import EpctxError, Failure, InvalidManifest, ManifestError, unexpected

REPORT = "report it"
"""Remedy of a bug, before the log with the traceback is known."""


class EncodedAction(msgspec.Struct):
    """An action: the name of its class, and its fields."""

    kind: str
    action: msgspec.Raw


class Message(msgspec.Struct, omit_defaults=True):
    """One line: a `job` (a list of actions) to the worker, or one of the other fields back.

    Results come in the order of the actions. The job ends with `done`, the largest resident size of
    the process in bytes, or with an error.
    """

    job: tuple[EncodedAction, ...] = ()
    started: msgspec.Raw = msgspec.Raw()
    native: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    done: int | None = None
    error: Failure | None = None


def encode(job: Sequence[Action[Any]]) -> tuple[EncodedAction, ...]:
    """Encode a job for a worker."""
    return tuple(
        EncodedAction(kind=type(action).__name__, action=msgspec.Raw(codec.encode(action)))
        for action in job
    )


def actions(message: Message) -> list[Action[Any]]:
    """Decode the job of a message.

    Raises:
        ValueError: an action does not exist, or has other fields.
    """
    job: list[Action[Any]] = []
    for each in message.job:
        kind = KINDS.get(each.kind)
        if kind is None:
            raise ValueError(f"no such action: {each.kind}")
        job.append(codec.decode(bytes(each.action), kind))
    return job


def restore(failure: Failure, *, log: Path) -> EpctxError:
    """Restore an error of a worker, as its own class; `log` has the traceback of a bug."""
    cls = {cls.__name__: cls for cls in _tree(EpctxError)}.get(failure.kind, EpctxError)
    if issubclass(cls, InvalidManifest):  # its violations are not sent
        cls = ManifestError
    return cls.of(
        failure, remedy=f"report it with the log file {log}" if cls is EpctxError else None
    )


def _tree(cls: type[EpctxError]) -> list[type[EpctxError]]:
    return [cls, *(kind for sub in cls.__subclasses__() for kind in _tree(sub))]


def report(error: BaseException) -> Failure:
    """Return an error for the parent; print the traceback of a bug to the worker's log."""
    if isinstance(error, EpctxError):
        return error.failure
    traceback.print_exception(error, file=sys.stderr)
    return unexpected(error, remedy=REPORT).failure
