"""Environment variables of all commands, checked before a command starts."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from msgspec import Struct

from epctx import limits
from epctx.providers import registry
from epctx.text import did_you_mean

_PREFIX: Final = "EPCTX_"
_HIDE: Final = "EPCTX_HIDE_DEVICES"
_MEANINGS: Final = {
    "EPCTX_CACHE_DIR": ("the platform's folder for caches", "the folder of the cache"),
    "EPCTX_CACHE_READONLY": ("no", "use the cache, but do not change it"),
    "EPCTX_CACHE_SHARED": ("no", "use a cache that other, trusted users can write to"),
    "EPCTX_CACHE_SIGNING_KEY": (
        "nothing is signed",
        "file of a private key, or a command that prints the key, as a JSON list",
    ),
    "EPCTX_REMOTE_CACHE_TOKEN": (
        "the entry of the host in ~/.netrc",
        "bearer token for a shared cache at https://",
    ),
    _HIDE: ("none", "names of EPs, separated by commas, whose devices are hidden"),
}
"""Default and meaning of each variable."""
_INTERNAL: Final = frozenset({"EPCTX_WORKER_PLACE"})
"""Variables that epctx sets for its own processes."""
_SECRET: Final = re.compile("TOKEN|SECRET|PASSWORD|KEY")


class Variable(Struct, frozen=True, kw_only=True):
    """A variable of the environment that epctx reads.

    Attributes:
        value: the current value, `(set)` in place of a secret; None if it is not set.
        default: behaviour or number that applies if the variable is not set.
        meaning: effect of the variable.
    """

    name: str
    value: str | None
    default: str
    meaning: str


def variables(
    options: Mapping[str, tuple[str, str]], environment: Mapping[str, str] = os.environ
) -> list[Variable]:
    """Return all variables; limits come last.

    Args:
        options: default and meaning of the variables that can replace command-line options.
    """
    meanings = dict(sorted({**_MEANINGS, **options}.items())) | {
        each.variable: (str(each.default), f"largest accepted value, in {each.unit}: {each.of}")
        for each in limits.ALL
    }
    return [
        Variable(
            name=name,
            value=_shown(name, environment.get(name)),
            default=default,
            meaning=meaning,
        )
        for name, (default, meaning) in meanings.items()
    ]


def _shown(name: str, value: str | None) -> str | None:
    """Return a value without secrets; a URL may contain a password."""
    if value is not None and (_SECRET.search(name) or "@" in value.partition("://")[2]):
        return "(set)"
    return value


def unknown(
    options: Collection[str], environment: Mapping[str, str] = os.environ
) -> Iterator[tuple[str, str]]:
    """Yield variables that have epctx's prefix but are unknown, each with a suggestion."""
    names = {*_MEANINGS, *options}
    limited = {each.variable for each in limits.ALL}
    for name in environment:
        if name.startswith(_PREFIX) and name not in names | limited | _INTERNAL:
            yield name, did_you_mean(name, sorted(names))


def check() -> None:
    """Refuse invalid limits and devices that cannot be hidden.

    Raises:
        UsageError: the value of a variable is invalid.
    """
    limits.check()
    if os.environ.get(_HIDE):  # so that no provider is imported otherwise
        registry.check_hidden()
