"""Texts for people: sizes and times in words, texts of strangers made safe to show, and the nearest
known name for a misspelt name.

A misspelt name is compared with every known name. With many misspelt and many known names, this
could take hours, so the effort is bounded, both for one name and for all names of a file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import PurePath
from typing import Final

from msgspec import Struct

_COMPARED: Final = 10_000_000
"""Maximum number of compared pairs of characters; this many comparisons take a second."""
_REPR: Final = 60
"""Maximum characters of one value in a repr."""
_LISTED: Final = 50
"""Maximum number of choices that a message lists."""

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", re.ASCII | re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_UNSAFE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that move the cursor, ring the bell, hide or reverse text, or are invalid. Names in
models may contain them."""


class _Effort(Struct):
    """Remaining pairs of characters that may be compared."""

    remaining: int


_effort: ContextVar[_Effort | None] = ContextVar("effort", default=None)


@contextmanager
def suggesting() -> Iterator[None]:
    """Let all suggestions in the body share one effort. Once it is spent, no name counts as
    near.
    """
    token = _effort.set(_Effort(_COMPARED))
    try:
        yield
    finally:
        _effort.reset(token)


def size_words(size: int) -> str:
    """Format a size in bytes for people, in powers of 1000."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def bytes_of(text: str) -> int | None:
    """Parse a size like `10GB` (powers of 1000) or `500MiB` (powers of 1024) into bytes; None if
    the text is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    number, unit, binary = match.groups("")
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])


def time_words(seconds: float) -> str:
    """Format a time for people, in whole seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def visible(text: str) -> str:
    """Return a text with its control characters escaped as Python does."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def first_line(error: Exception) -> str:
    """Return the first non-empty line of an error's message; the class name if the message is
    empty.
    """
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def node_words(name: str | None, op: str, outputs: Iterable[str | None]) -> str:
    """Return a node in words: its name, or a value that it makes."""
    output = next(filter(None, outputs), None)
    if name:
        return f"node {name!r}"
    return f"the {op} node that makes {output!r}" if output else f"an unnamed {op} node"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name`, ignoring case; None if no name is near, or if
    the search exceeds the remaining effort (`suggesting`).
    """
    effort = _effort.get() or _Effort(_COMPARED)
    if not effort.remaining:
        return None
    known = list(known)
    cost = len(name) * sum(len(candidate) + 1 for candidate in known)
    effort.remaining = max(0, effort.remaining - cost)
    if not effort.remaining:
        return None
    by_fold = {candidate.casefold(): candidate for candidate in reversed(known)}

    matches = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[matches[0]] if matches else None


def nearest_file(name: str, known: Iterable[str]) -> str | None:
    """Return the nearest file name, as `nearest` does. An equal suffix does not count as
    similarity, but the only file with the suffix is a match, and so is the only file whose name
    without suffix is `name`. A file whose name extends `name` (`net.onnx.data`) is not a match,
    since it belongs to the missing file.
    """
    path = PurePath(name)
    by_stem: dict[str, str] = {}
    others = []
    for candidate in known:
        if PurePath(candidate).suffix.casefold() == path.suffix.casefold():
            by_stem[PurePath(candidate).stem] = candidate
        elif not path.suffix or not candidate.startswith((f"{name}.", f"{name}_")):
            others.append(candidate)
    stem = next(iter(by_stem)) if len(by_stem) == 1 else nearest(path.stem, by_stem)
    if stem is not None:
        return by_stem[stem]
    whole = [other for other in others if PurePath(other).stem == name]
    return whole[0] if len(whole) == 1 else nearest(name, others)


class Brief(Struct, frozen=True, kw_only=True):
    """Base class of structs with a repr of one line.

    The repr shows only the size of a collection, and leaves out values that are None, False or
    empty.
    """

    def __repr__(self) -> str:
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        fields = ", ".join(f"{name}={_brief(value)}" for name, value in values if value)
        return f"{type(self).__name__}({fields})"


def _brief(value: object) -> str:
    if isinstance(value, Mapping | tuple | list):
        return f"<{len(value):,}>"
    text = f"{type(value).__name__}(…)" if isinstance(value, Struct) else repr(value)
    return text if len(text) <= _REPR else f"{text[:_REPR]}…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a remedy's clause: `did you mean "x"?`, else the names to choose from.

    If the effort is spent (`suggesting`), return neither, since both would go through all names.
    """
    effort = _effort.get()
    if effort is not None and not effort.remaining:
        return "correct the name"
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return f'did you mean "{near}"?'
    if not names:
        return "there is none to choose from"
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"choose one of: {', '.join(names[:_LISTED])}{more}"
