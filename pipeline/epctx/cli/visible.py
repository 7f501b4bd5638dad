"""Foreign text, made safe to show."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that move a cursor, ring, hide or reverse text, or are invalid; names have them."""


def visible(text: str) -> str:
    """Return a text with its control characters escaped as Python does."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
