"""Values that are often written where they cannot be, and what was meant by them.

A schema says it by `instead` of its `x-epctx`: a value as it is written, or its kind (number, text,
boolean, list, mapping), to the remedy. In that `{}` stands for the value, of a list for its first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from epctx.parsing.document.tree import Node, Plain

_YES: Final = frozenset({"yes", "y", "on"})
_NO: Final = frozenset({"no", "n", "off"})
_NUMBER: Final = re.compile(r"-?[0-9][0-9_]*(\.[0-9_]*)?")
_LEADING_ZEROS: Final = re.compile(r"^(-?)0+(?=[0-9])")
_PERCENT: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%?", re.ASCII)


def remedy(node: Node, instead: Mapping[str, Plain]) -> str | None:
    """What to write in the place of a value; None: the schema does not say."""
    said = instead.get(node.text, instead.get(node.kind))
    shown = node.items[0].text if node.items else node.text
    return said.replace("{}", shown or "…") if isinstance(said, str) else None


def share(node: Node, limit: Plain = 1) -> str | None:
    """The share that 10 to 100 percent were meant as, where at most 1 is asked."""
    match = _PERCENT.fullmatch(node.text) if limit == 1 else None
    if match is None or not 10 <= float(match[1]) <= 100:
        return None
    return f"write it as a share: {float(match[1]) / 100:g}"


def unquoted(kinds: Sequence[str], node: Node) -> str | None:
    """How to write a text that was meant as a number or as true or false."""
    lowered = node.text.casefold()
    if node.kind != "text":
        return None
    if "boolean" in kinds and lowered in {"true", "false"}:
        return f"write it without quotes: {lowered}"
    if "boolean" in kinds and lowered in _YES | _NO:
        return f"write {'true' if lowered in _YES else 'false'}"
    if {"integer", "number"} & {*kinds} and _NUMBER.fullmatch(lowered):
        number = _LEADING_ZEROS.sub(r"\1", lowered.replace("_", ""))
        return f"write it without quotes: {number}" if node.quoted else f"write {number}"
    return None


def texts(alternatives: Plain) -> Iterator[str]:
    """The texts among which an `anyOf` lets one choose."""
    for each in alternatives if isinstance(alternatives, list) else ():
        choices = each.get("enum") if isinstance(each, dict) else None
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, str):
                yield choice
