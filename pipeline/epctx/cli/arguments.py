"""The command line as it was typed, with the options of all commands where they are understood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_FLAGS: Final = frozenset({"-q", "--quiet", "--verbose"})
_VALUED: Final = frozenset({"--format", "--color"})


def normal(arguments: Sequence[str]) -> list[str]:
    """The arguments with options of all commands that stand before the command moved behind it.

    `epctx -v --format json build m.yaml` is `epctx build m.yaml -v --format json`.
    """
    moved: list[str] = []
    rest = list(arguments)
    while rest and _is_common(rest[0]):
        count = 2 if rest[0] in _VALUED else 1
        moved += rest[:count]
        rest = rest[count:]
    if not rest or rest[0].startswith("-"):
        return list(arguments)  # no command: help, the version
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *moved, *rest[end:]]


def _is_common(argument: str) -> bool:
    name, equals, _ = argument.partition("=")
    if equals:
        return name in _VALUED
    counted = argument.startswith("-v") and set(argument[1:]) == {"v"}
    return argument in _FLAGS | _VALUED or counted
