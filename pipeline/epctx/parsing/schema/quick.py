"""A quick yes in front of jsonschema, whose import alone takes as long as all else in `load`.

`accepts` says yes only where jsonschema would find no error; all else (an error, a keyword that is
not known here) is left to jsonschema, which alone says what is wrong.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from epctx.parsing.document.tree import Plain

Schema: TypeAlias = Mapping[str, Plain]

_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$defs", "$comment", "title", "description", "default", "examples",
     "deprecated", "format", "x-epctx", "then", "else"}
)  # fmt: skip
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
    "number": (int, float),
}


def accepts(value: Plain, schema: Plain, root: Schema) -> bool:
    """`value` surely keeps `schema`, whose references lead into `root`."""
    if not isinstance(schema, dict):
        return schema is True
    for keyword, limit in schema.items():
        check = _CHECKS.get(keyword)
        if check is None:
            if keyword not in _ANNOTATIONS:
                return False
        elif not check(value, limit, schema, root):
            return False
    return True


@functools.cache
def pattern(text: str) -> re.Pattern[str]:
    r"""A JSON Schema pattern: unlike Python's, `$` is the text's end and `\d` an ASCII digit."""
    return re.compile(re.sub(r"(?<!\\)\$(?=$|\)|\|)", r"\\Z", text), re.ASCII)


def _type(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
    kinds = limit if isinstance(limit, list) else [limit]
    return any(_is(value, str(kind)) for kind in kinds)


def _is(value: Plain, kind: str) -> bool:
    if kind == "integer":
        whole = isinstance(value, float) and value.is_integer()
        return whole or (isinstance(value, int) and not isinstance(value, bool))
    return isinstance(value, _TYPES[kind]) and (kind != "number" or not isinstance(value, bool))


def _enum(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
    """Among scalars alone; 1 is 1.0 and is not true."""
    choices = limit if isinstance(limit, list) else []
    return not isinstance(value, list | dict) and any(
        value == choice and isinstance(value, bool) == isinstance(choice, bool)
        for choice in choices
    )


def _const(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
    return _enum(value, [limit], schema, root)


def _pattern(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
    return not isinstance(value, str) or pattern(str(limit)).search(value) is not None


def _bounded(keeps: Callable[[float, float], bool]) -> Check:
    def check(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
        if not _is(value, "number"):
            return True
        return (
            isinstance(value, int | float)
            and isinstance(limit, int | float)
            and keeps(value, limit)
        )

    return check


def _sized(kind: type, sign: int) -> Check:
    def check(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
        if not isinstance(value, kind) or not isinstance(value, str | list | dict):
            return True
        return isinstance(limit, int) and sign * (len(value) - limit) >= 0

    return check


def _unique(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
    """Among texts alone."""
    items = value if isinstance(value, list) else []
    texts = {item for item in items if isinstance(item, str)}
    return limit is False or len(texts) == len(items)


def _items(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
    return not isinstance(value, list) or all(accepts(item, limit, root) for item in value)


def _properties(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
    if not isinstance(value, dict):
        return True
    return isinstance(limit, dict) and all(
        accepts(value[key], rule, root) for key, rule in limit.items() if key in value
    )


def _additional(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
    known = schema.get("properties", {})
    if not isinstance(value, dict) or not isinstance(known, dict):
        return not isinstance(value, dict)
    return all(accepts(child, limit, root) for key, child in value.items() if key not in known)


def _names(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
    return not isinstance(value, dict) or all(accepts(key, limit, root) for key in value)


def _required(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
    keys = limit if isinstance(limit, list) else []
    return not isinstance(value, dict) or all(key in value for key in keys)


def _reference(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
    first, *rest = _steps(str(limit))
    target = root.get(first, False)
    for step in rest:
        target = target.get(step, False) if isinstance(target, dict) else False
    return accepts(value, target, root)


@functools.cache
def _steps(reference: str) -> tuple[str, ...]:
    return tuple(reference.removeprefix("#/").split("/"))


def _any(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
    return isinstance(limit, list) and any(accepts(value, rule, root) for rule in limit)


def _all(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
    return isinstance(limit, list) and all(accepts(value, rule, root) for rule in limit)


def _if(value: Plain, limit: Plain, schema: Schema, root: Schema) -> bool:
    """Where the condition is not surely kept, both branches must be."""
    then = accepts(value, schema.get("then", True), root)
    return then and (accepts(value, limit, root) or accepts(value, schema.get("else", True), root))


Check: TypeAlias = Callable[[Plain, Plain, Schema, Schema], bool]

_CHECKS: dict[str, Check] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "pattern": _pattern,
    "minimum": _bounded(operator.ge),
    "maximum": _bounded(operator.le),
    "minLength": _sized(str, 1),
    "maxLength": _sized(str, -1),
    "minItems": _sized(list, 1),
    "maxItems": _sized(list, -1),
    "minProperties": _sized(dict, 1),
    "maxProperties": _sized(dict, -1),
    "uniqueItems": _unique,
    "items": _items,
    "properties": _properties,
    "additionalProperties": _additional,
    "propertyNames": _names,
    "required": _required,
    "$ref": _reference,
    "anyOf": _any,
    "allOf": _all,
    "if": _if,
}
