"""All errors for users, in one tree: each class has an exit code, each kind of error a code.

    EpctxError                1  unexpected: a bug
    ├── UsageError            2  the command line
    ├── ManifestError         3  the manifest, option names and values included
    │   └── InvalidManifest   3  every violation of the schema and the rules at once
    ├── ModelError            4  an input model or its data
    ├── ProviderUnavailable   5  an execution provider or its package is missing
    ├── CompileError          6  compilation failed or crashed, nothing compiled, coverage missed
    ├── VerificationError     7  an output is not what it must be
    │   └── InvalidGraph      7  an EPContext model cannot be loaded (ONNX Runtime's INVALID_GRAPH)
    ├── LockError             8  the lock differs, or the build is not reproducible
    ├── StorageError          9  cache or disk
    ├── TimedOut             10  a limit in time was reached
    └── Interrupted         130  SIGINT, SIGTERM, SIGHUP

Only `cli` turns an error into an exit code. `error_codes` has the codes of kinds, which `epctx
explain` explains.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from epctx.error_codes import Code as Code

MESSAGE_LENGTH: Final = 4000
"""Maximum number of characters in each part of a message, since models hold names of any length."""


_SAID: Final = ("what", "remedy", "where", "why", "file", "line", "column", "model", "node", "code")
"""Fields that an error shares with its `Failure`."""


class EpctxError(Exception):
    """An error that says what happened, where, why, and what to do.

    The place is in fields, for programs, and in one text, for people: `where`. A caller that knows
    more about the place adds it with `about`.

    Args:
        what: what is wrong, one clause, without a full stop.
        remedy: what the user can do; the last line of the message.
        where: place in words, if the fields cannot express it: a graph, a key of the manifest.
        why: the cause, if `what` does not make it plain.
        file: path as the user knows it, with `/` or in the system's notation.
        line: line in `file`, from 1; 0 for the whole file.
        column: column in characters, from 1; 0 for the whole line.
        model: the model's key in the manifest.
        node: name of a node in the model.
        code: code of the kind; None for the general code of the class.

    Attributes:
        code: code of the kind, as `epctx explain` takes it.
        group: `group@target`, as `--only` takes it; set by the engine.
        log: end of the log of the process that failed; None if it is not known.
        report: build report of a failed build; None for other errors.
    """

    exit_code: ClassVar[int] = 1
    code: Code = Code.BUG
    log: LogTail | None = None
    report: object | None = None

    def __init__(
        self,
        what: str,
        *,
        remedy: str,
        where: str | None = None,
        why: str | None = None,
        file: str | None = None,
        line: int = 0,
        column: int = 0,
        model: str | None = None,
        node: str | None = None,
        code: Code | None = None,
    ) -> None:
        self.code = code or type(self).code
        self.what = _shown(what)
        self.why = why and _shown(why)
        self.remedy = _shown(remedy)
        self.group: str | None = None
        self.file = file and _shown(file)
        self.line = line
        self.column = column
        self.model = model and _shown(model)
        self.node = node and _shown(node)
        self._words = where and _shown(where)
        super().__init__(self.what)

    @property
    def where(self) -> str | None:
        """Place in words: the argument `where`, else the fields without the group."""
        if self._words:
            return self._words
        place = f":{self.line}:{self.column}" if self.line else ""
        parts = [f"{self.file}{place}"] if self.file else []
        parts = parts or ([f"model {self.model}"] if self.model else [])
        parts += [f"node {self.node!r}"] if self.node else []
        return ", ".join(parts) or None

    @property
    def reason(self) -> str:
        """The message's `what` and `why`, without place and remedy."""
        return f"{self.what}: {self.why}" if self.why else self.what

    @property
    def failure(self) -> Failure:
        """The error as data."""
        fields = {name: getattr(self, name) for name in _SAID}
        kind = type(self).__name__
        return Failure(kind=kind, exit_code=self.exit_code, group=self.group, **fields)

    @classmethod
    def of(cls, failure: Failure, *, remedy: str | None = None) -> Self:
        """Return `failure` as an error of this class, optionally with another remedy."""
        fields = {name: getattr(failure, name) for name in _SAID}
        if failure.exit_code != cls.exit_code and cls is not EpctxError:
            fields["code"] = None  # the code belongs to another class
        error = cls(**fields | ({"remedy": remedy} if remedy else {}))
        error.group = failure.group
        return error

    @property
    def head(self) -> str:
        """The message without the remedy."""
        return ": ".join(part for part in (self.group, self.where, self.what, self.why) if part)

    @classmethod
    @contextmanager
    def if_refused(
        cls,
        what: str,
        *,
        remedy: str,
        where: str | None = None,
        file: str | None = None,
        code: Code | None = None,
    ) -> Iterator[None]:
        """Turn an OSError in the body into this error, with the system's message as `why`."""
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error)
            raise cls(what, where=where, file=file, why=why, remedy=remedy, code=code) from error

    def __str__(self) -> str:
        return f"{self.head}\n  -> {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error as data, for other processes, reports and JSON.

    Attributes:
        kind: name of the error's class.
        code: code of the kind, as `epctx explain` takes it.
        where: place in words, without the group.
        group: `group@target`; None if the error belongs to no group, or to the report's own group.
        file: file that the error is about; None if there is none or it is not known.
        line: line in the file, from 1; 0 for the whole file.
        column: column in characters, from 1; 0 for the whole line.
        model: the model's key in the manifest.
        node: name of a node in the model.
    """

    kind: str
    exit_code: int
    code: Code
    what: str
    remedy: str
    where: str | None = None
    why: str | None = None
    group: str | None = None
    file: str | None = None
    line: int = 0
    column: int = 0
    model: str | None = None
    node: str | None = None


@dataclass(frozen=True, kw_only=True)
class LogTail:
    """The end of a log.

    Attributes:
        file: file with the whole log; in a build report relative to the report's folder, with `/`.
        lines: the last lines.
    """

    file: str
    lines: tuple[str, ...]


@contextmanager
def about(
    *, file: str | None = None, model: str | None = None, key: str | None = None
) -> Iterator[None]:
    """Add this file and this model to errors in the body that do not name their own.

    `key`: manifest key to put before the place.
    """
    try:
        yield
    except EpctxError as error:
        error.file = error.file or file
        error.model = error.model or model
        if key is not None:
            error._words = key if error.where is None else f"{key}: {error.where}"
        raise


_CREDENTIALS: Final = re.compile(
    # A port is not a password, and `@sha256:` begins the digest of an artifact, not a host.
    r"(?<=://)(?:[^\s/@:]++|[^\s/@:]*+:(?!\d+/)[^\s@]*+(?:@[^\s@/]*+(?=@))*)@(?!sha256:)"
    r"|(?<=[?&])([\w.-]*(?:token|secret|signature|sig|password|key|credential)[\w.-]*=)[^\s&'\"]+",
    re.IGNORECASE,
)


def unexpected(error: BaseException, *, remedy: str) -> EpctxError:
    """Return the error for an exception that epctx does not raise: a bug, or too little memory.

    Args:
        remedy: what to do about a bug.
    """
    if isinstance(error, MemoryError):
        return CompileError(
            "this process got no more memory from the system",
            why=str(error) or None,
            remedy="raise its limit (`ulimit -v`, a container's), build with fewer --jobs, or "
            "use a larger machine",
            code=Code.OUT_OF_MEMORY,
        )
    why = f"{type(error).__name__}: {error}"
    return EpctxError("unexpected error, a bug in epctx", why=why, remedy=remedy)


def without_credentials(text: str) -> str:
    """Replace user names, passwords and tokens in the URLs of a text by `…`."""
    return _CREDENTIALS.sub(lambda match: f"{match[1]}…" if match[1] else "…@", text)


def _shown(text: str) -> str:
    """Prepare a part of a message: remove credentials, and cut the middle of a text that is too
    long.
    """
    length = len(text)
    if length > 4 * MESSAGE_LENGTH:  # credentials take quadratic time to find
        text = f"{text[: 3 * MESSAGE_LENGTH]} … {text[-MESSAGE_LENGTH:]}"
    text = without_credentials(text)
    if len(text) <= MESSAGE_LENGTH:
        return text
    head, tail = text[: MESSAGE_LENGTH * 3 // 4], text[-MESSAGE_LENGTH // 4 :]
    return f"{head} … ({length - MESSAGE_LENGTH:,} characters more) … {tail}"


class UsageError(EpctxError):
    """The command line cannot be carried out as it stands."""

    exit_code = 2
    code = Code.USAGE

    @classmethod
    def if_missing(cls, module: str, extra: str) -> None:
        """Check that a module can be imported, which an extra of epctx installs.

        Raises:
            UsageError: the module cannot be imported. Names the extra.
        """
        try:
            importlib.import_module(module)
        except ImportError as error:
            name = module.partition(".")[0]
            raise cls(
                f"this needs the package {name}, which is not installed",
                remedy=f'pip install "epctx[{extra}]"',
                code=Code.ENVIRONMENT,
            ) from error


class ManifestError(EpctxError):
    """The manifest breaks the schema or a rule."""

    exit_code = 3
    code = Code.MANIFEST


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A single fault in a manifest.

    Attributes:
        file: path of the manifest as the user gave it, with `/`.
        line: line of the wrong value or key, from 1; 0 if it has no place in the file.
        column: column in characters, from 1; 0 if it has no place in the file.
        path: path in the manifest, like `model_groups.llm.models[1]`; empty for the whole document.
        what: what is wrong, one clause, without a full stop.
        remedy: what the user can do.
        code: code of the kind, as `epctx explain` takes it.
    """

    file: str
    line: int
    column: int
    path: str
    what: str
    remedy: str
    code: Code = Code.MANIFEST

    def __post_init__(self) -> None:
        for name in ("file", "path", "what", "remedy"):
            object.__setattr__(self, name, without_credentials(getattr(self, name)))

    @property
    def where(self) -> str:
        """`file:line:column`, as editors and terminals link it."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file

    def __str__(self) -> str:
        subject = f"{self.path}: " if self.path else ""
        return f"{self.where}: {subject}{self.what}\n  -> {self.remedy}"


class InvalidManifest(ManifestError):
    """The manifest breaks the schema or rules; `violations` lists every fault, in the
    file's order.
    """

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        first = self.violations[0]
        more = len(self.violations) - 1
        super().__init__(
            f"{first.path}: {first.what}" if first.path else first.what,
            file=first.file,
            line=first.line,
            column=first.column,
            why=f"and {more} more" if more else None,
            remedy=first.remedy,
            code=first.code,
        )

    def __str__(self) -> str:
        return "\n".join(str(violation) for violation in self.violations)


class ModelError(EpctxError):
    """An input model or its external data is missing, broken or not buildable.

    Attributes:
        is_broken: epctx judges the file unusable as it is. The caller adds ONNX Runtime's verdict.
    """

    exit_code = 4
    code = Code.MODEL
    is_broken = False

    @classmethod
    def broken(cls, what: str, *, where: str, why: str | None = None) -> Self:
        """Make an error about a file that no build can use and that must be exported again."""
        remedy = "the file is broken: export the model again"
        error = cls(what, where=where, why=why, remedy=remedy, code=Code.MODEL_BROKEN)
        error.is_broken = True
        return error


class ProviderUnavailable(EpctxError):
    """An execution provider is not installed, or this host cannot use it."""

    exit_code = 5
    code = Code.PROVIDER


class CompileError(EpctxError):
    """Compilation failed or crashed, compiled nothing, or missed the coverage asked for.

    Attributes:
        starved: a process was ended, probably for lack of memory, which says nothing about its
            input.
        native: work of a library during which its process crashed or was ended, as `graph.native`
            names it; None if it was not watched work.
    """

    exit_code = 6
    code = Code.COMPILE
    starved = False
    native: str | None = None


class VerificationError(EpctxError):
    """An output is not what it must be."""

    exit_code = 7
    code = Code.VERIFICATION


class InvalidGraph(VerificationError):
    """An EPContext model cannot be loaded. An EP that cannot load a context binary returns ONNX
    Runtime's status code INVALID_GRAPH.
    """

    code = Code.INVALID_GRAPH
    status: ClassVar[str] = "INVALID_GRAPH"

    @property
    def head(self) -> str:
        """The message without the remedy, after ONNX Runtime's name of the error."""
        return f"{self.status}: {super().head}"


class LockError(EpctxError):
    """The lock and the build differ, or the build is not reproducible."""

    exit_code = 8
    code = Code.LOCK_DIFFERS


class StorageError(EpctxError):
    """The disk or the cache cannot be used."""

    exit_code = 9
    code = Code.STORAGE


class TimedOut(EpctxError):
    """A time limit was reached."""

    exit_code = 10
    code = Code.TIMED_OUT


class Interrupted(EpctxError):
    """The user or the system asked epctx to stop."""

    exit_code = 130
    code = Code.INTERRUPTED
