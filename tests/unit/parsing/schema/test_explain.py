"""Violations in words, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from epctx.parsing.document import build, parse
from epctx.parsing.document.tree import Node, Plain
from epctx.parsing.schema import apply as schema
from epctx.parsing.schema import explain


def told(text: str, rules: Mapping[str, Plain]) -> list[tuple[str, str]]:
    root = build.build(text, file="m.yaml").root
    return [(p.what, p.remedy) for p in schema.problems_of(root, rules)]


@pytest.mark.parametrize(
    ("text", "rules", "what", "remedy"),
    [
        ("5", {"exclusiveMinimum": 5}, "is 5, must be more than 5", "write more than 5"),
        ("5", {"exclusiveMaximum": 5}, "is 5, must be less than 5", "write less than 5"),
        ("5", {"multipleOf": 4}, "is 5, must be a multiple of 4", "write a multiple of 4"),
        ("abc", {"maxLength": 2}, "has 3 characters, must have at most 2 characters",
         "write at most 2 characters"),
        ("{}", {"minProperties": 1}, "is empty, must have at least 1 entry",
         "write at least 1 entry"),
        ("x", {"type": "boolean"}, 'is "x", must be true or false', "write true or false"),
        ("no", {"type": "boolean"}, 'is "no", must be true or false', "write false"),
        ("'true'", {"type": "boolean"}, 'is "true", must be true or false',
         "write it without quotes: true"),
        ("1", {"type": "string"}, "is 1, must be text", 'put it in quotes: "1"'),
        ("0x10", {"type": "string"}, "is 0x10, must be text", 'put it in quotes: "0x10"'),
        ("{a: 1}", {"type": "string"}, "is a mapping, must be text", "write text"),
        ("[a]", {"type": "object"}, "is a list, must be a mapping", "write a mapping"),
        ("a", {"type": "object"}, 'is "a", must be a mapping', "write `key: value` pairs"),
        ("null", {"type": "string"}, "is null, must be text", "write text"),
        ("'5'", {"type": ["integer", "null"]}, 'is "5", must be a whole number',
         "write it without quotes: 5"),
        ("-007", {"type": "number"}, 'is "-007", must be a number', "write -7"),
        ("fas", {"enum": ["fast", "slow"]}, 'is "fas", must be one of fast, slow',
         'did you mean "fast"?'),
        ("'1'", {"enum": [1, 2]}, 'is "1", must be one of 1, 2', "write it without quotes: 1"),
        ("b", {"const": "a"}, 'is "b", must be a', "write a"),
        ("a", {"pattern": "^b$", "x-epctx": {"expects": "the letter b"}},
         'is "a", must be the letter b', "write the letter b"),
        ("a", {"pattern": "^b$", "x-epctx": {"expects": "the letter b"}, "examples": ["b"]},
         'is "a", must be the letter b', "write, for example, b"),
        ("a", {"anyOf": [{"type": "number"}, {"const": "b"}], "x-epctx": {"expects": "a size"}},
         'is "a", must be a size', "write a size"),
    ],
)  # fmt: skip
def test_words(text: str, rules: Mapping[str, Plain], what: str, remedy: str) -> None:
    assert told(text, rules) == [(what, remedy)]


def test_a_rule_without_words_is_still_told() -> None:
    ((what, remedy),) = told("a", {"anyOf": [{"type": "number"}, {"const": "b"}]})
    assert what.startswith("breaks anyOf: ")
    assert remedy


def test_words_come_from_behind_references_and_conditions() -> None:
    rules: dict[str, Plain] = {
        "properties": {"x": {"$ref": "#/$defs/even"}},
        "if": {"required": ["y"]},
        "then": {"properties": {"x": {"minimum": 10, "examples": [12]}}},
        "$defs": {"even": {"multipleOf": 2, "type": "integer"}},
    }
    assert told("x: 3", rules) == [("is 3, must be a multiple of 2", "write a multiple of 2")]
    assert told("{x: 4, y: 1}", rules) == [("is 4, must be at least 10", "write 10 or more")]


def test_a_missing_key_is_told_once_and_with_an_example() -> None:
    rules: dict[str, Plain] = {
        "required": ["path", "size"],
        "properties": {"path": {"$ref": "#/$defs/p"}, "size": {"type": "integer"}},
        "additionalProperties": False,
        "$defs": {"p": {"examples": ["a.onnx"]}},
    }
    assert told("{}", rules) == [
        ('has no "path"', "add `path:`, for example `a.onnx`"),
        ('has no "size"', "add `size:`"),
    ]
    assert told("{pth: x, size: 1}", rules) == [("unknown key", 'did you mean "path"?')]


def test_a_pattern_ends_where_the_text_ends() -> None:
    rules: dict[str, Plain] = {"pattern": "^(a|b$)[0-9]*$", "x-epctx": {"expects": "a1"}}
    assert told('"a1"', rules) == []
    assert told('"a1\\n"', rules) == [('is "a1\\n", must be a1', "write a1")]
    digits: dict[str, Plain] = {"pattern": "^\\d$", "x-epctx": {"expects": "a digit"}}
    assert told('"٣"', digits) == [('is "٣", must be a digit', "write a digit")]


def test_an_escaped_dollar_is_a_dollar() -> None:
    assert told("a$", {"pattern": "^a\\$"}) == []


def node(text: str) -> Node:
    return parse(f"a: {text}".encode(), file="a.yaml", path=Path("a.yaml")).root.mapping["a"]


@pytest.mark.parametrize(
    ("text", "instead", "told"),
    [
        ("true", {"true": "write 1"}, "write 1"),
        ("true", {"boolean": "write 1", "true": "write 2"}, "write 2"),
        ("0.5", {"number": "write {max: {}}"}, "write {max: 0.5}"),
        ("[x.onnx, y]", {"list": "name {}"}, "name x.onnx"),
        ("[]", {"list": "name {}"}, "name …"),
        ("text", {"number": "write 1"}, None),
        ("text", {"text": 1}, None),
    ],
)
def test_a_schema_says_what_to_write_instead(
    text: str, instead: dict[str, Plain], told: str | None
) -> None:
    assert explain.value_remedy(node(text), instead) == told


@pytest.mark.parametrize(
    ("text", "limit", "told"),
    [
        ("95", 1, "write it as a share: 0.95"),
        ("'99.9 %'", 1, "write it as a share: 0.999"),
        ("100%", 1, "write it as a share: 1"),
        ("2", 1, None),
        ("101", 1, None),
        ("95", 64, None),
        ("many", 1, None),
    ],
)
def test_percent_are_a_share(text: str, limit: Plain, told: str | None) -> None:
    assert explain.as_share(node(text), limit) == told


def test_the_texts_of_alternatives_are_those_of_their_enums() -> None:
    rules: Plain = [{"pattern": "^a$"}, {"enum": ["b", 1, "c"]}, 2]
    assert list(explain.wrong_texts(rules)) == ["b", "c"]
    assert list(explain.wrong_texts("b")) == []
