"""Explain schema violations: the fault, its position, and the remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from jsonschema import ValidationError
from msgspec import Struct

from epctx.error_codes import Code
from epctx.files import filenames
from epctx.parsing.document import tree
from epctx.parsing.document.tree import Node, Plain, Problem, at, at_key, quoted, refusal
from epctx.text import did_you_mean, nearest

_YES: Final = frozenset({"yes", "y", "on"})
_NO: Final = frozenset({"no", "n", "off"})
_NUMBER: Final = re.compile(r"-?[0-9][0-9_]*(\.[0-9_]*)?")
_LEADING_ZEROS: Final = re.compile(r"^(-?)0+(?=[0-9])")
_PERCENT: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%?", re.ASCII)


def value_remedy(node: Node, instead: Mapping[str, Plain]) -> str | None:
    """Remedy that the schema has for a value; None if it has none."""
    remedy = instead.get(node.text, instead.get(node.kind))
    shown = node.items[0].text if node.items else node.text
    return remedy.replace("{}", shown or "…") if isinstance(remedy, str) else None


def as_share(node: Node, limit: Plain = 1) -> str | None:
    """Remedy for a percentage from 10 to 100 where a share of at most 1 is allowed."""
    match = _PERCENT.fullmatch(node.text) if limit == 1 else None
    if match is None or not 10 <= float(match[1]) <= 100:
        return None
    return f"write it as a share: {float(match[1]) / 100:g}"


def as_unquoted(kinds: Sequence[str], node: Node) -> str | None:
    """Remedy for a text that was meant as a number or a boolean."""
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


def wrong_texts(alternatives: Plain) -> Iterator[str]:
    """Texts that an `anyOf` allows."""
    for each in alternatives if isinstance(alternatives, list) else ():
        choices = each.get("enum") if isinstance(each, dict) else None
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, str):
                yield choice


KINDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}
LONGEST_EXAMPLE = 60
"""Maximum characters of an example in a remedy."""


def explain(error: ValidationError, node: Node, schema: Mapping[str, Plain]) -> Iterator[Problem]:
    """Convert one error of jsonschema, about the value `node`, to problems.

    Args:
        error: error from `iter_errors`.
        node: value at the error's path.
        schema: whole schema, which contains the targets of all `$ref`.
    """
    keyword, failed = str(error.validator), _mapping(error.schema)
    if "propertyNames" in error.relative_schema_path:
        yield _bad_key(str(error.instance), node, _asked(error, schema))
    elif keyword == "additionalProperties":
        yield from _unknown_keys(failed, node, schema)
    elif keyword == "required":
        yield from _missing_keys(failed, node, schema)
    elif keyword == "uniqueItems":
        yield from _repeated(node)
    else:
        requirements = _asked(error, schema)
        what, remedy = _value(keyword, failed.get(keyword), node, requirements)
        if not what:
            what, remedy = f"breaks {keyword}: {error.message}", "see `epctx schema` for the rule"
        code = Code.WRONG_TYPE if keyword == "type" else Code.WRONG_VALUE
        yield at(node, what, value_remedy(node, requirements.instead) or remedy, code)


class _Asked(Struct, frozen=True, kw_only=True):
    """Requirements of the schemas for a value: words, an example, a pattern, replacements."""

    expects: str | None
    example: str | None
    pattern: str | None
    choices: Sequence[Plain]
    instead: Mapping[str, Plain]

    def remedy(self, wanted: str) -> str:
        """Remedy for the value: an example if there is one, else `wanted`."""
        return f"write {wanted}" if self.example is None else f"write, for example, {self.example}"

    def takes(self, text: str) -> bool:
        """Tell whether a text may be valid for this value."""
        if self.pattern is not None:
            return re.search(self.pattern, text) is not None
        return self.expects is None and not self.choices


def _mapping(value: object) -> Mapping[str, Plain]:
    return value if isinstance(value, dict) else {}


def _asked(error: ValidationError, schema: Mapping[str, Plain]) -> _Asked:
    """Merge the annotations of all schemas for this value; the outermost wins."""
    at: Plain = _resolved(dict(schema), schema)
    annotations = dict(_mapping(at))
    for step in error.absolute_schema_path:
        if step in ("properties", "additionalProperties", "items", "propertyNames"):
            annotations = {}
        if isinstance(at, list) and isinstance(step, int):
            at = at[step]
        else:
            at = at.get(str(step)) if isinstance(at, dict) else None
        at = _resolved(at, schema)
        annotations = {**_mapping(at), **annotations}
    note, pattern = _mapping(annotations.get("x-epctx")), annotations.get("pattern")
    expects = note.get("expects")
    examples, choices = annotations.get("examples"), annotations.get("enum")
    return _Asked(
        expects=expects if isinstance(expects, str) else None,
        example=_short(examples[0]) if isinstance(examples, list) and examples else None,
        pattern=pattern if isinstance(pattern, str) else None,
        choices=choices if isinstance(choices, list) else (),
        instead=_mapping(note.get("instead")),
    )


def _short(value: Plain) -> str | None:
    text = _text(value)
    return text if len(text) <= LONGEST_EXAMPLE else None


def _resolved(at: Plain, schema: Mapping[str, Plain]) -> Plain:
    """Schema merged with the target of its `$ref`."""
    while isinstance(at, dict) and isinstance(at.get("$ref"), str):
        target: Plain = dict(schema)
        for step in str(at["$ref"]).removeprefix("#/").split("/"):
            target = target.get(step) if isinstance(target, dict) else None
        own = {key: value for key, value in at.items() if key != "$ref"}
        at = {**target, **own} if isinstance(target, dict) else own
    return at


def _bad_key(key: str, node: Node, asked: _Asked) -> Problem:
    problem = filenames.problem(key) if asked.expects == filenames.EXPECTS else None
    if problem is not None:
        return at_key(node, key, problem, filenames.remedy(key), Code.WRONG_NAME)
    what = f"must be {asked.expects}" if asked.expects else "is not an allowed name"
    return at_key(node, key, what, "rename it", Code.WRONG_NAME)


def _unknown_keys(
    failed: Mapping[str, Plain], node: Node, schema: Mapping[str, Plain]
) -> Iterator[Problem]:
    known_keys, note = list(_mapping(failed.get("properties"))), _mapping(failed.get("x-epctx"))
    hints, owned = _mapping(note.get("hints")), _mapping(note.get("owned"))
    for key in node.mapping:
        reason = next((text for name, text in owned.items() if _stands_for(name, key)), None)
        if key in known_keys:
            continue
        if reason is not None:
            yield at_key(node, key, *refusal(str(reason)), Code.OWNED_SETTING)
        elif key in hints:
            yield at_key(node, key, "is not a key here", str(hints[key]), Code.UNKNOWN_KEY)
        else:
            what, _, listed = str(note.get("unknown", "unknown key")).partition("; ")
            remedy = (
                listed if listed and not nearest(key, known_keys) else did_you_mean(key, known_keys)
            )
            inside = None if nearest(key, known_keys) else _inside(key, failed, schema)
            yield at_key(node, key, what, inside or remedy, Code.UNKNOWN_KEY)


def _inside(key: str, failed: Mapping[str, Plain], schema: Mapping[str, Plain]) -> str | None:
    """Remedy that names the one or two places, one level deeper, where a key is known."""
    children = _mapping(failed.get("properties"))
    names = [
        name
        for name, child in children.items()
        if key in _mapping(_mapping(_resolved(child, schema)).get("properties"))
    ]
    places = " or ".join(f"`{each}`" for each in names)
    return f"write it in {places}: `{names[-1]}: {{{key}: …}}`" if 0 < len(names) < 3 else None


def _stands_for(pattern: str, key: str) -> bool:
    """Tell whether a name, which may end with the wildcard `*`, matches a key."""
    return key == pattern or (pattern.endswith("*") and key.startswith(pattern[:-1]))


def _missing_keys(
    failed: Mapping[str, Plain], node: Node, schema: Mapping[str, Plain]
) -> Iterator[Problem]:
    known_keys = list(_mapping(failed.get("properties")))
    # A misspelt key is reported once, with "did you mean", and not again as a missing key.
    misspelt = {nearest(key, known_keys) for key in node.mapping if key not in known_keys}
    required = failed.get("required")
    for key in required if isinstance(required, list) else ():
        if isinstance(key, str) and key not in node.mapping and key not in misspelt:
            described = _resolved(_mapping(failed.get("properties")).get(key), schema)
            remedy = f"add `{key}:`{_example(described)}"
            what = f'has no "{key}"'
            yield Problem(
                mark=node.mark, path=node.path, what=what, remedy=remedy, code=Code.MISSING_KEY
            )


def _example(schema: Plain) -> str:
    examples = schema.get("examples") if isinstance(schema, dict) else None
    if not isinstance(examples, list) or not examples or isinstance(examples[0], dict):
        return ""
    return f", for example `{_text(examples[0])}`"


def _repeated(node: Node) -> Iterator[Problem]:
    seen: set[tuple[type, str]] = set()
    for item in node.items:
        value = item.plain()
        key = type(value), json.dumps(value, sort_keys=True)
        if key in seen:
            yield at(item, f"{_text(value)} is listed twice", "remove it", Code.WRONG_VALUE)
        seen.add(key)


def _value(keyword: str, limit: Plain, node: Node, asked: _Asked) -> tuple[str, str]:
    """Message and remedy for a value that breaks the keyword's `limit`; empty if unknown."""
    if keyword == "type":
        kinds = limit if isinstance(limit, list) else [limit]
        return _kind([str(kind) for kind in kinds], node, asked)
    if keyword in ("enum", "const"):
        return _choice(limit if isinstance(limit, list) else [limit], node, asked.expects)
    if keyword in _BOUNDS:
        phrase, remedy = _BOUNDS[keyword]
        bound, share = _text(limit), as_share(node, limit)
        what = f"is {_shown(node)}, must be {phrase} {bound}"
        return what, share or remedy.format(bound)
    if keyword in _COUNTS and isinstance(limit, int | float):
        if asked.expects and keyword == "minLength" and not node.text:
            return f"is empty, must be {asked.expects}", asked.remedy(asked.expects)
        return _count(keyword, int(limit), node)
    if asked.expects == filenames.EXPECTS:
        what = f"is {quoted(node.text)}, which {filenames.problem(node.text)}"
        return what, filenames.remedy(node.text)
    if asked.expects:
        near = nearest(node.text, wrong_texts(limit)) if node.text else None
        remedy = asked.remedy(asked.expects) if near is None else f"did you mean {quoted(near)}?"
        return f"is {_shown(node)}, must be {asked.expects}", remedy
    return "", ""


_BOUNDS = {
    "minimum": ("at least", "write {} or more"),
    "maximum": ("at most", "write {} or less"),
    "exclusiveMinimum": ("more than", "write more than {}"),
    "exclusiveMaximum": ("less than", "write less than {}"),
    "multipleOf": ("a multiple of", "write a multiple of {}"),
}
_COUNTS = {
    "minItems": ("entries", "at least"),
    "maxItems": ("entries", "at most"),
    "minProperties": ("entries", "at least"),
    "maxProperties": ("entries", "at most"),
    "minLength": ("characters", "at least"),
    "maxLength": ("characters", "at most"),
}


def _count(keyword: str, limit: int, node: Node) -> tuple[str, str]:
    unit, phrase = _COUNTS[keyword]
    single = {"entries": "entry", "characters": "character"}[unit]
    count = len(node.text) if unit == "characters" else len(node.items or node.mapping)
    needed = f"{phrase} {limit} {single if limit == 1 else unit}"
    has = f"has {count} {single if count == 1 else unit}" if count else "is empty"
    return f"{has}, must have {needed}", f"write {needed}"


def _choice(values: Sequence[Plain], node: Node, expects: str | None) -> tuple[str, str]:
    choices = [_text(value) for value in values]
    listed = expects or _listed(values)
    same = next((v for v in values if node.kind == "text" and _text(v) == node.text), None)
    remedy = f"write {listed}"
    if same is not None and not isinstance(same, str):
        remedy = f"write it without quotes: {node.text}"
    elif node.kind in ("text", "number", "boolean"):
        near = nearest(node.text, choices)
        remedy = f"did you mean {quoted(near)}?" if near is not None else remedy
    return f"is {_shown(node)}, must be {listed}", remedy


def _listed(values: Sequence[Plain]) -> str:
    choices = list(dict.fromkeys(_text(value) for value in values if value is not None))
    return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"


def _kind(kinds: Sequence[str], node: Node, asked: _Asked) -> tuple[str, str]:
    """Message and remedy for a value of the wrong kind; YAML's pitfalls have their own remedies."""
    words = " or ".join(KINDS[kind] for kind in kinds if kind != "null")
    wanted = asked.expects or (_listed(asked.choices) if asked.choices else words)
    if node.kind == "null" and not node.text:
        return f"has no value, must be {wanted}", "give it a value, or remove the key"
    share = as_share(node) if "number" in kinds else None
    unquoted = as_unquoted(kinds, node)
    remedy = unquoted or share or _quote(kinds, node, asked) or asked.remedy(wanted)
    return f"is {_shown(node)}, must be {wanted}", remedy


def _quote(kinds: Sequence[str], node: Node, asked: _Asked) -> str | None:
    """Remedy for a scalar that was meant as a text, a list or a mapping."""
    if node.kind not in ("text", "number", "boolean"):
        return None
    if "string" in kinds and asked.takes(node.text):
        return f'put it in quotes: "{node.text}"'
    if kinds[0] == "array":
        return f"write a list: [{node.text}]"
    return "write `key: value` pairs" if kinds[0] == "object" else None


def _shown(node: Node) -> str:
    if node.kind in ("mapping", "list"):
        return f"a {node.kind}"
    if node.kind == "text":
        # Show an option that was converted to text as the user wrote it.
        number = not node.quoted and not isinstance(tree.resolve(node.text), str)
        return node.text if number else quoted(node.text) if node.text else "empty"
    return {"number": node.text, "boolean": node.text, "null": "null"}[node.kind]


def _text(value: Plain) -> str:
    """Spelling of a value in YAML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_text(child)}' for key, child in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(_text(item) for item in value)}]"
    return str(value)
