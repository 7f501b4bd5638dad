"""Names that become file names: valid and distinct on every system."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

MAX_LENGTH = 100
"""Greatest length of a name from which epctx makes other names."""
MAX_FILE_LENGTH = 255
"""Greatest length of a file's whole name, on every file system."""
EXPECTS = (
    "a name of ASCII letters, digits and . _ + -, that starts with a letter, a digit or _, "
    "and does not end with a dot"
)
"""Description of a valid name in the manifest's schema; `problem` says how a name violates it."""

_ALLOWED = re.compile(r"[A-Za-z0-9_.+-]")
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_FORBIDDEN = re.compile(r'[<>:"|?*\\\x00-\x1f]')


def problem(name: str, *, limit: int = MAX_LENGTH) -> str | None:
    """Return why `name` cannot be a file name everywhere; None if it can.

    Only ASCII is allowed: with similar letters, or a letter in two encodings, two names could look
    the same. The manifest's schema has the same rule as a pattern, for editors.
    """
    if not name:
        return "is empty"
    for character in name:
        if not _ALLOWED.fullmatch(character):
            return f"has the character {character_text(character)}"
    if name[0] in ".+-":
        return f'starts with "{name[0]}"'
    if name.endswith("."):
        return "ends with a dot"
    if len(name) > limit:
        return f"is longer than {limit} characters"
    if _RESERVED.fullmatch(name):
        return "is a device on Windows, not a file name"
    return None


def not_on_windows(paths: Iterable[str]) -> str | None:
    """Return why Windows cannot have these paths in one folder; None if it can."""
    spelled: dict[str, str] = {}
    for path in paths:
        folder = ""
        for name in path.split("/"):
            if name[-1:] in (".", " ") or _RESERVED.fullmatch(name) or _FORBIDDEN.search(name):
                return f"{name[:100]!r} is no name of a file there"
            folder = f"{folder}/{name}"
            if (first := spelled.setdefault(fold(folder), folder)) != folder:
                return f"{first[1:101]!r} and {folder[1:101]!r} are one there"
    return None


def remedy(name: str) -> str:
    """Return the remedy for `problem(name)`."""
    allowed = name and all(_ALLOWED.fullmatch(character) for character in name)
    return "rename it" if allowed else "use ASCII letters, digits and . _ + -"


def character_text(character: str) -> str:
    """Describe a character for a message: itself if it is visible, its code point and its name."""
    shown = f'"{character}" ' if character.isprintable() and character != " " else ""
    name = unicodedata.name(character, "a control character")
    plain = shown and character.isascii()
    return shown.rstrip() if plain else f"{shown}U+{ord(character):04X} ({name})"


def fold(name: str) -> str:
    """Return the same text for all names that a file system may not distinguish, by case or Unicode
    form.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
