"""Texts for people: sizes and times in words, the nearest known name for a misspelt one.

What is near is found by comparing a name with all that are known, so many misspelt names among many
known ones would take hours: the effort is bounded, for one name and for all of a file together.
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
"""Pairs of characters that are compared at most: a second's work."""
_REPR: Final = 60
"""Characters of one value in a repr."""
_LISTED: Final = 50
"""Names to choose from that a message lists."""

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", re.ASCII | re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class _Effort(Struct):
    """Pairs of characters that may still be compared."""

    left: int


_effort: ContextVar[_Effort | None] = ContextVar("effort", default=None)


@contextmanager
def suggesting() -> Iterator[None]:
    """All suggestions in the body share the effort of one: when it is spent, nothing is near."""
    token = _effort.set(_Effort(_COMPARED))
    try:
        yield
    finally:
        _effort.reset(token)


def size_words(size: int) -> str:
    """A size in bytes for people, in powers of 1000."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def bytes_of(text: str) -> int | None:
    """Return the bytes of a size like `10GB` (powers of 1000) or `500MiB` (powers of 1024); None if
    it is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    number, unit, binary = match.groups("")
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])


def time_words(seconds: float) -> str:
    """A time for people, in whole seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def first_line(error: Exception) -> str:
    """What an error says, its first line that says anything; its class where it says nothing."""
    said = (line.strip() for line in str(error).splitlines())
    return next(filter(None, said), type(error).__name__)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, case apart; None if nothing is near, or if to find
    it is more effort than there is (`suggesting`).
    """
    effort = _effort.get() or _Effort(_COMPARED)
    if not effort.left:
        return None
    known = list(known)
    cost = len(name) * sum(len(candidate) + 1 for candidate in known)
    effort.left = max(0, effort.left - cost)
    if not effort.left:
        return None
    by_fold = {candidate.casefold(): candidate for candidate in reversed(known)}

    matches = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[matches[0]] if matches else None


def nearest_file(name: str, known: Iterable[str]) -> str | None:
    """As `nearest`, for names of files: a suffix that both have does not make them alike, but the
    only file that has it may be meant, and so may the only one whose suffix was left out. A file
    that has the whole name and more (`net.onnx.data`) belongs to the one that is not there.
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
    """What has a repr of one line, whatever it holds.

    Collections are told by their size, what they hold is not; what is None, False or empty is left
    out.
    """

    def __repr__(self) -> str:
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        told = ", ".join(f"{name}={_brief(value)}" for name, value in values if value)
        return f"{type(self).__name__}({told})"


def _brief(value: object) -> str:
    if isinstance(value, Mapping | tuple | list):
        return f"<{len(value):,}>"
    text = f"{type(value).__name__}(…)" if isinstance(value, Struct) else repr(value)
    return text if len(text) <= _REPR else f"{text[:_REPR]}…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A remedy's clause: `did you mean "x"?`, else what there is to choose from.

    Where the effort is spent (`suggesting`), it is neither: that would go through all names, too.
    """
    effort = _effort.get()
    if effort is not None and not effort.left:
        return "correct the name"
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return f'did you mean "{near}"?'
    if not names:
        return "there is none to choose from"
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"choose one of: {', '.join(names[:_LISTED])}{more}"
