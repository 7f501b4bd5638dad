"""The command line as it was typed, with the options of all commands where they are understood."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_FLAGS: Final = frozenset({"--quiet", "--verbose"})
_SHORT: Final = re.compile(r"-[qv]+")
_WITH_COMMANDS: Final = frozenset({"cache", "import"})
"""Commands that have commands of their own."""
_QUOTED: Final = re.compile(r"-[epiCvh]\S*\s")
"""How flags of another tool begin, as one word: `epctx import ep-weight-sharing "-e qnn …"`."""
_VALUED: Final = frozenset({"--format", "--color"})


def normal(arguments: Sequence[str]) -> list[str]:
    """The arguments with options of all commands that stand before the command moved behind it.

    `epctx -v --format json build m.yaml` is `epctx build m.yaml -v --format json`.
    """
    moved, rest = _split(arguments)
    if not rest or rest[0].startswith("-"):
        return list(arguments)  # no command: help, the version
    command, rest = rest[:1], rest[1:]
    if command[0] in _WITH_COMMANDS:
        more, rest = _split(rest)
        moved += more
    if command == ["import"]:  # what begins with a blank is no option
        rest = [f" {word}" if _QUOTED.match(word) else word for word in rest]
    end = rest.index("--") if "--" in rest else len(rest)
    return [*command, *rest[:end], *moved, *rest[end:]]


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of all commands at the beginning, and the rest."""
    end = 0
    while end < len(arguments) and _is_common(arguments[end]):
        end += 2 if arguments[end] in _VALUED else 1
    return list(arguments[:end]), list(arguments[end:])


def _is_common(argument: str) -> bool:
    name, equals, _ = argument.partition("=")
    if equals:
        return name in _VALUED
    return argument in _FLAGS | _VALUED or _SHORT.fullmatch(argument) is not None
