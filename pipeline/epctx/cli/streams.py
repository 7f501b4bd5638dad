"""stdout and stderr of every command: nothing printed is a command to who reads it, and nothing is
lost in silence.

What a line of a log is to GitHub's runner depends on how the line begins, and names of models reach
lines in every way there is: so each line is looked at where it leaves. A stream that cannot be
written ends no command half way: it ends as it would have, and what could not be said is told.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO, cast

from epctx.errors import StorageError

_COMMAND: Final = re.compile(r"(?:^\s*:(?=:)|##(?=\[)).", re.MULTILINE)
"""Where GitHub's runner would find a command: `::` begins a line, `##[` is anywhere in it."""
_UNSEEN: Final = re.compile(
    r"[\x0b\x0c\x1c-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What ends a line for some readers, hides or turns text round, or is none. Escape sequences are
left: they are colours of our own, others do not get here (`render.visible`)."""
_KEPT: Final = 64 << 10
"""Characters of what could not be said that are kept, from the end."""


class Stream(io.TextIOBase):
    """A text stream in which nothing is a command; its errors are kept, not raised.

    What is escaped is escaped as in JSON: who reads a result as JSON reads the same.

    Attributes:
        inner: where it goes.
        failure: why that cannot be written; from then on nothing is.
        lost: the end of what was not written.
        used: something was written.
    """

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner
        self.failure: OSError | None = None
        self.lost = ""
        self.used = False
        self._line = ""

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def write(self, text: str) -> int:
        self.write_raw(self._inert(text))
        return len(text)

    def write_raw(self, text: str) -> None:
        """Write what is meant as a command."""
        self._try(lambda: self.inner.write(text))
        if self.failure is not None:
            self.lost = (self.lost + text)[-_KEPT:]
        self.used = True

    def flush(self) -> None:
        self._try(self.inner.flush)

    def isatty(self) -> bool:
        return self.inner.isatty()

    def fileno(self) -> int:
        return self.inner.fileno()

    def writable(self) -> bool:
        return True

    def _inert(self, text: str) -> str:
        """The text with escapes; it may go on with a line that was begun before."""
        whole = self._line + _UNSEEN.sub(lambda found: _escaped(found[0]), text)
        shown = _COMMAND.sub(lambda found: found[0][:-1] + _escaped(found[0][-1]), whole)
        begun = len(self._line)
        # Of a line as it was begun only the first two words of a command matter.
        last = whole.rpartition("\n")[2]
        self._line = last if not last.strip(": \t") else "x" + last[-2:]
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
