"""Texts of others, as they may be shown."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What moves a cursor, rings, hides or turns text round, or is none: names may hold any of it."""


def visible(text: str) -> str:
    """A text with its control characters written out, as Python escapes them."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
