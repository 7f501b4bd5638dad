"""Scalars by YAML 1.2's core schema, as editors read them, not by YAML 1.1.

`no`, `on`, `off`, `1_000`, `12:30:45`, `2026-01-01` and `007` are text; `1e-3` is a number.
"""

from __future__ import annotations

import re

from epctx.parsing.document.tree import Scalar

MAX_DIGITS = 300
"""Longest number, in characters; what is longer is text."""

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMERIC = frozenset("+-.0123456789")
"""What a number begins with."""
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TYPES: dict[str, type] = {
    "tag:yaml.org,2002:str": str,
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": float,
    "tag:yaml.org,2002:bool": bool,
    "tag:yaml.org,2002:null": type(None),
}


def resolve(text: str) -> Scalar:
    """The value of a plain scalar (one without quotes and tag)."""
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if text[0] not in _NUMERIC or len(text) > MAX_DIGITS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def convert(text: str, tag: str) -> Scalar:
    """The value of a scalar with a tag of the core schema, like `!!str`.

    Raises:
        ValueError: the tag is another one, or the text is none of its values.
    """
    kind = _TYPES.get(tag)
    value: Scalar = text if kind is str else resolve(text)
    if kind is float and type(value) is int:
        value = float(value)
    if kind is None or type(value) is not kind:
        raise ValueError(f"{text!r} is no {tag}")
    return value
