"""Move options that all commands have from before the command to behind it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_FLAGS: Final = frozenset({"--quiet", "--verbose"})
_SHORT: Final = re.compile(r"-[qv]+")
_WITH_COMMANDS: Final = frozenset({"cache", "import"})
"""Commands that have commands of their own."""
_QUOTED: Final = re.compile(r"-[epiCvh]\S*\s")
"""Beginning of another tool's flags in one word: `epctx import ep-weight-sharing "-e qnn …"`."""
_VALUED: Final = frozenset({"--format", "--color"})


def normal(arguments: Sequence[str]) -> list[str]:
    """Return the arguments, with options that all commands have moved behind the command.

    `epctx -v --format json build m.yaml` is `epctx build m.yaml -v --format json`.
    """
    moved, rest = _split(arguments)
    if not rest or rest[0].startswith("-"):
        return list(arguments)  # without a command: help or the version
    command, rest = rest[:1], rest[1:]
    if command[0] in _WITH_COMMANDS:
        more, rest = _split(rest)
        moved += more
    if command == ["import"]:  # a word that begins with a blank is not parsed as an option
        rest = [f" {word}" if _QUOTED.match(word) else word for word in rest]
    end = rest.index("--") if "--" in rest else len(rest)
    return [*command, *rest[:end], *moved, *rest[end:]]


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the leading options that all commands have, and the rest."""
    end = 0
    while end < len(arguments) and _is_common(arguments[end]):
        end += 2 if arguments[end] in _VALUED else 1
    return list(arguments[:end]), list(arguments[end:])


def _is_common(argument: str) -> bool:
    name, equals, _ = argument.partition("=")
    if equals:
        return name in _VALUED
    return argument in _FLAGS | _VALUED or _SHORT.fullmatch(argument) is not None
