"""YAML writer of the lock: one text for one value, without a YAML library."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./:+#@-]*(?<!:)", re.ASCII)
"""Pattern of texts that every YAML reader takes for a text. It has no spaces, so it excludes `a: b`
and `a #b`.
"""
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]")
_INDENT = "  "


def text(value: Mapping[str, object]) -> str:
    """Return a document in block style, with sorted keys, one entry a line.

    Args:
        value: mappings with string keys, lists, texts, numbers, truth values and null.
    """
    lines: list[str] = []
    _mapping(value, "", lines)
    return "".join(lines)


def _mapping(value: Mapping[str, object], indent: str, lines: list[str]) -> None:
    for key in sorted(value):
        _entry(f"{indent}{_string(key)}:", value[key], indent, lines)


def _sequence(value: Sequence[object], indent: str, lines: list[str]) -> None:
    for item in value:
        if isinstance(item, Mapping) and item:
            first = len(lines)
            _mapping(item, indent + _INDENT, lines)
            # `- ` takes the place of the first line's indentation.
            lines[first] = f"{indent}- {lines[first][len(indent) + len(_INDENT) :]}"
        else:
            _entry(f"{indent}-", item, indent, lines)


def _entry(head: str, value: object, indent: str, lines: list[str]) -> None:
    if isinstance(value, str):
        lines.append(f"{head} {_string(value)}\n")
    elif isinstance(value, Mapping) and value:
        lines.append(f"{head}\n")
        _mapping(value, indent + _INDENT, lines)
    elif isinstance(value, list | tuple) and value:
        lines.append(f"{head}\n")
        _sequence(value, indent + _INDENT, lines)
    else:
        lines.append(f"{head} {_scalar(value)}\n")


def _scalar(value: object) -> str:
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    if isinstance(value, float):
        # YAML 1.1 takes 1e-05 for a text, since it has no dot.
        number = repr(value)
        return number if "." in number else number.replace("e", ".0e")
    return json.dumps(value, allow_nan=False)


@lru_cache(maxsize=4096)
def _string(value: str) -> str:
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)
