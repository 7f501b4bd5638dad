"""Did you mean: the nearest known name for a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, case apart; None if nothing is near."""
    by_fold = {candidate.casefold(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.6)
    return by_fold[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A remedy's clause: `did you mean "x"?`, else what there is to choose from."""
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return f'did you mean "{near}"?'
    return f"choose one of: {', '.join(names)}" if names else "there is none to choose from"
