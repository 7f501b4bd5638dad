"""Make text from models and manifests safe to show."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that move the cursor, ring the bell, hide or reverse text, or are invalid. Names in
models may contain them."""


def visible(text: str) -> str:
    """Return a text with its control characters escaped as Python does."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
