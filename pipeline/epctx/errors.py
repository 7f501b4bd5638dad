"""Every error that a user can meet: one tree, one exit code each (design section 10).

    EpctxError                1  unexpected: a bug
    ├── UsageError            2  the command line
    ├── ManifestError         3  the manifest, option names and values included
    ├── ModelError            4  an input model or its data
    ├── ProviderUnavailable   5  an execution provider or its package is missing
    ├── CompileError          6  compilation failed or crashed, nothing compiled, coverage missed
    ├── VerificationError     7  an output is not what it must be
    │   └── InvalidGraph      7  an EPContext model cannot be loaded (ONNX Runtime's INVALID_GRAPH)
    ├── LockError             8  the lock differs, or the build is not reproducible
    ├── StorageError          9  cache or disk
    ├── TimedOut             10  a limit in time was reached
    └── Interrupted         130  SIGINT, SIGTERM

Nothing but `cli` turns one of them into an exit code.
"""

from __future__ import annotations

from typing import ClassVar


class EpctxError(Exception):
    """An error that says what happened, where, why, and what to do.

    Args:
        what: what is wrong, one clause, without a full stop.
        where: the file, `file:line:column`, model, group or node that it is about.
        why: the cause, when it is not plain from `what`.
        remedy: what the user can do; the last line of the message.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self, what: str, *, remedy: str, where: str | None = None, why: str | None = None
    ) -> None:
        self.what = what
        self.where = where
        self.why = why
        self.remedy = remedy
        super().__init__(what)

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        if self.why:
            head = f"{head}: {self.why}"
        return f"{head}\n  -> {self.remedy}"


class UsageError(EpctxError):
    """The command line cannot be carried out as it stands."""

    exit_code = 2


class ManifestError(EpctxError):
    """The manifest breaks the schema or a rule."""

    exit_code = 3


class ModelError(EpctxError):
    """An input model or its external data is missing, broken or not buildable."""

    exit_code = 4


class ProviderUnavailable(EpctxError):
    """An execution provider is not installed, or this host cannot use it."""

    exit_code = 5


class CompileError(EpctxError):
    """Compilation failed or crashed, compiled nothing, or missed the coverage asked for."""

    exit_code = 6


class VerificationError(EpctxError):
    """An output is not what it must be."""

    exit_code = 7


class InvalidGraph(VerificationError):
    """An EPContext model cannot be loaded: ONNX Runtime's status code INVALID_GRAPH.

    Source: spec/ep-context-design.md, "Error Handling During EP Context Binary Loading".
    """

    code: ClassVar[str] = "INVALID_GRAPH"

    def __str__(self) -> str:
        return f"{self.code}: {super().__str__()}"


class LockError(EpctxError):
    """The lock and the build differ, or the build is not reproducible."""

    exit_code = 8


class StorageError(EpctxError):
    """The disk or the cache cannot be used."""

    exit_code = 9


class TimedOut(EpctxError):
    """A limit in time was reached."""

    exit_code = 10


class Interrupted(EpctxError):
    """The user or the system asked epctx to stop."""

    exit_code = 130
