"""Escape CI workflow commands in output, and report failed writes.

GitHub's runner takes lines that begin in a certain way for commands, and names of models reach
lines in many ways: so each line is checked where it leaves. A stream that cannot be written does
not end a command half way: the command ends as it would have, and the failed write is reported.
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

_COMMAND: Final = re.compile(r"^\s*::|##\[", re.MULTILINE)
"""Commands of GitHub's runner: `::` begins a line, `##[` is anywhere in it."""
_BEGUN: Final = re.compile(r"[\s:]*")
"""A line that may yet become a command."""
_UNSEEN: Final = re.compile(
    r"[\x0b\x0c\x1c-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that end a line for some readers, hide or reverse text, or are invalid. Escape
sequences are left: they are colours of our own, others do not get here (`visible.visible`)."""
_KEPT: Final = 64 << 10
"""Characters of what could not be said that are kept, from the end."""


ESCAPING: Final = "epctx.escaping"
"""Error handler for characters that an encoding lacks: JSON's escapes, which JSON keeps."""


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
        inner: where it goes.
        failure: why that cannot be written; from then on nothing is.
        lost: the end of what was not written.
        used: something was written.
    """

    encoding = "utf-8"
    errors: str | None = None

    def __init__(self, inner: TextIO) -> None:
        if isinstance(inner, io.TextIOWrapper):
            inner.reconfigure(errors=ESCAPING)  # what its encoding does not have
        self.encoding = inner.encoding or self.encoding
        self.inner = inner
        self.failure: OSError | None = None
        self.lost = ""
        self.used = False
        self._line = ""

    def write(self, text: str) -> int:
        """Write it, without commands."""
        self.write_raw(self._inert(text))
        return len(text)

    def write_raw(self, text: str) -> None:
        """Write what is meant as a command."""
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
        """Return the text with escapes; it may continue a line that was begun before."""
        seen = _UNSEEN.sub(lambda found: _escaped(found[0]), text)
        if not self.isatty():
            seen = seen.replace("\r", _escaped("\r"))  # on a terminal it moves a cursor of our own
        begun = len(self._line)
        shown = _COMMAND.sub(
            lambda found: found[0][:-1] + _escaped(found[0][-1]), self._line + seen
        )
        last = shown.rpartition("\n")[2]
        self._line = last if _BEGUN.fullmatch(last) else f"x{last[-2:]}"
        return shown[begun:]

    def _try(self, write: Callable[[], object]) -> None:
        if self.failure is not None:
            return
        try:
            write()
        except OSError as error:
            self.failure = error
            with contextlib.suppress(OSError, ValueError):  # what is held back goes nowhere, too
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.inner.fileno())


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"


def colours_forced(color: str) -> bool:
    """Tell whether a log gets colours: `--color` is `always`, or the environment says so."""
    return color == "always" or bool(os.environ.get("FORCE_COLOR"))


def open_closed() -> None:
    """Take the places of streams that were closed before this process began (`>&-`).

    Else the next file that is opened gets the number of one, and what is printed. A null device
    opened the wrong way round is written to like a full disk: with an error, in the same places.
    """
    for number, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # gets the lowest number that is free: this one
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", 1, encoding="utf-8", closefd=False)


@contextmanager
def guarded() -> Iterator[None]:
    """Make stdout and stderr `Stream`s while a command runs; then report failed writes.

    Raises:
        SystemExit: stdout cannot be written, and the command did not fail: that is its failure.
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
            # Not kept: what it holds by its traceback would stay until garbage is collected.
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
            remedy="give it a place with room and run the command again; what it made is there",
        )
        err.write(f"error[{error.code}]: {error.head}\n  -> {error.remedy}\n")
        code = code or error.exit_code
    err.flush()
    if code and err.lost and not out.used and not isinstance(err.failure, BrokenPipeError):
        out.write(err.lost)
        out.flush()
    return code
