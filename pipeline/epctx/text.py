"""Texts for people: sizes in words, the nearest known name for a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import PurePath


def size_words(size: int) -> str:
    """A size in bytes for people, in powers of 1000."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, case apart; None if nothing is near."""
    by_fold = {candidate.casefold(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[matches[0]] if matches else None


def nearest_file(name: str, known: Iterable[str]) -> str | None:
    """As `nearest`, for names of files: a suffix that both have does not make them alike, but the
    only file that has it may be meant.
    """
    path = PurePath(name)
    by_stem: dict[str, str] = {}
    others = []
    for candidate in known:
        if PurePath(candidate).suffix.casefold() == path.suffix.casefold():
            by_stem[PurePath(candidate).stem] = candidate
        else:
            others.append(candidate)
    stem = next(iter(by_stem)) if len(by_stem) == 1 else nearest(path.stem, by_stem)
    return by_stem[stem] if stem is not None else nearest(name, others)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A remedy's clause: `did you mean "x"?`, else what there is to choose from."""
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return f'did you mean "{near}"?'
    return f"choose one of: {', '.join(names)}" if names else "there is none to choose from"
