"""Escape commands of CI systems in output, and report failed writes.

A CI system obeys some lines of a log, and names of models appear in many lines. So each line is
checked when it is written. A stream that cannot be written does not stop a command: the command
finishes, and then the failed write is reported.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO, cast

from epctx.errors import StorageError

_COLOURS: Final = r"(?:\x1b\[[\d;]*m)*"
COMMAND: Final = re.compile(
    r"^[^\S\n]*::|##(?:vso|teamcity)?\[|section_(?:start|end):"
    rf"|^{_COLOURS}(?:---|\+\+\+|~~~|\^\^\^){_COLOURS}[^\S\n]",
    re.MULTILINE,
)
"""Commands of CI systems, also in check_device.py. The last character is escaped.

- GitHub Actions: `::` first in a line, `##[` anywhere in it
  (https://github.com/actions/runner, ActionCommand.cs).
- Azure Pipelines: `##vso[` and `##[` anywhere, on stdout and stderr
  (https://github.com/microsoft/azure-pipelines-agent, Command.cs).
- TeamCity: `##teamcity[` anywhere (https://www.jetbrains.com/help/teamcity/service-messages.html).
- GitLab: `section_start:`, `section_end:` (https://docs.gitlab.com/ci/jobs/job_logs/).
- Buildkite: `---`, `+++`, `~~~`, `^^^ +++` first in a line, colours ignored
  (https://buildkite.com/docs/pipelines/managing-log-output).
"""
_LONGEST: Final = 64
"""Characters of a line, without blanks before them, that may yet become a command."""
_UNSEEN: Final = re.compile(
    r"[\x0b\x0c\x1c-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that end a line for some readers, hide or reverse text, or are invalid. Escape
sequences are allowed: these are epctx's colours, since `text.visible` escapes all others."""
_KEPT: Final = 64 << 10
"""Maximum characters to keep of the text that could not be written, from its end."""


ESCAPING: Final = "epctx.escaping"
"""Error handler that writes characters outside the encoding as JSON escapes; JSON stays valid."""


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    units = text.encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs), error.end


codecs.register_error(ESCAPING, _escape)


class Stream(io.TextIOBase):
    """Text stream that escapes commands, and keeps its errors instead of raising them.

    What is escaped is escaped as in JSON: who reads a result as JSON reads the same.

    Attributes:
        inner: the stream that gets the text.
        failure: error of the first failed write; nothing is written after it.
        lost: end of the text that was not written.
        used: True if something was written.
    """

    encoding = "utf-8"
    errors: str | None = None

    def __init__(self, inner: TextIO) -> None:
        if isinstance(inner, io.TextIOWrapper):
            inner.reconfigure(errors=ESCAPING)  # for characters outside its encoding
        self.encoding = inner.encoding or self.encoding
        self.inner = inner
        self.failure: OSError | None = None
        self.lost = ""
        self.used = False
        self._line = ""

    def write(self, text: str) -> int:
        """Write text, with commands escaped."""
        self.write_raw(self._inert(text))
        return len(text)

    def write_raw(self, text: str) -> None:
        """Write text as it is, such as a command."""
        self._try(lambda: self.inner.write(text))
        if self.failure is not None:
            self.lost = (self.lost + text)[-_KEPT:]
        self.used = True

    def flush(self) -> None:
        """Flush the inner stream."""
        self._try(self.inner.flush)

    def isatty(self) -> bool:
        """Tell whether the stream is a terminal."""
        return self.inner.isatty()

    def fileno(self) -> int:
        """Return the file number of `inner`."""
        return self.inner.fileno()

    def _inert(self, text: str) -> str:
        """Return the text with escapes; the text may continue the current line."""
        escaped = _UNSEEN.sub(lambda match: _escaped(match[0]), text)
        if not self.isatty():
            escaped = escaped.replace("\r", _escaped("\r"))  # a live view on a terminal needs it
        start = len(self._line)
        result = COMMAND.sub(
            lambda match: match[0][:-1] + _escaped(match[0][-1]), self._line + escaped
        )
        last = result.rpartition("\n")[2]
        self._line = last if len(last.lstrip()) < _LONGEST else f"x{last[-_LONGEST:]}"
        return result[start:]

    def _try(self, write: Callable[[], object]) -> None:
        if self.failure is not None:
            return
        try:
            write()
        except OSError as error:
            self.failure = error
            with contextlib.suppress(OSError, ValueError):  # discard buffered text as well
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.inner.fileno())


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"


def colours_forced(color: str) -> bool:
    """Tell whether a log gets colours: `--color` is `always`, or `FORCE_COLOR` is set."""
    return color == "always" or bool(os.environ.get("FORCE_COLOR"))


def open_closed() -> None:
    """Reopen standard streams that were closed before this process began (`>&-`).

    Otherwise the next opened file would get the number of a closed stream, and the printed text.
    The null device is opened in the wrong direction, so that a write fails as on a full disk.
    """
    for number, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # gets the lowest free number, which is this one
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", 1, encoding="utf-8", closefd=False)


@contextmanager
def guarded() -> Iterator[None]:
    """Make stdout and stderr `Stream`s while a command runs; then report failed writes.

    Raises:
        SystemExit: the command exits, or it succeeded and stdout cannot be written.
    """
    before = sys.stdout, sys.stderr
    out, err = Stream(sys.stdout), Stream(sys.stderr)
    sys.stdout, sys.stderr = cast("TextIO", out), cast("TextIO", err)
    code: object = None
    exits = False
    try:
        try:
            yield
        except SystemExit as ended:
            # Not kept as an exception: its traceback would hold objects until a garbage collection.
            code, exits = ended.code, True
        code = _end(out, err, code)
    finally:
        sys.stdout, sys.stderr = before
    if exits or code:
        raise SystemExit(code)


def _end(out: Stream, err: Stream, code: object) -> object:
    out.flush()
    if out.failure is not None and not isinstance(out.failure, BrokenPipeError):
        error = StorageError(
            "cannot be written",
            where="stdout",
            why=out.failure.strerror,
            remedy="redirect it to a disk with free space, and run the command again; "
            "its files are written",
        )
        err.write(f"error[{error.code}]: {error.head}\n  -> {error.remedy}\n")
        code = code or error.exit_code
    err.flush()
    if code and err.lost and not out.used and not isinstance(err.failure, BrokenPipeError):
        out.write(err.lost)
        out.flush()
    return code
