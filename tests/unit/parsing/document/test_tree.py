"""The tree of a document, and its scalars."""

from __future__ import annotations

import pytest

from epctx.parsing.document import build, tree
from epctx.parsing.document.tree import Node, Scalar, merge, quoted


def parsed(text: str) -> Node:
    return build.build(text, file="m.yaml").root


def test_mappings_merge_by_key_and_all_else_replaces() -> None:
    low = parsed("a: {x: 1, y: {z: 1}}\nb: [1, 2]\nc: 1\nd: {e: 1}\n")
    high = parsed("a: {y: {w: 2}, v: 3}\nb: [3]\nc: null\nd: text\n")
    merged = merge([low, None, high])
    assert merged is not None
    assert merged.plain() == {
        "a": {"x": 1, "y": {"z": 1, "w": 2}, "v": 3},
        "b": [3],
        "c": None,
        "d": "text",
    }


def test_a_merged_value_stands_where_it_came_from() -> None:
    merged = merge([parsed("a: {x: 1}\n"), parsed("\n\na: {y: 2}\n")])
    assert merged is not None
    x, y = merged.get("a", "x"), merged.get("a", "y")
    assert x is not None and y is not None
    assert (x.mark.line, y.mark.line) == (1, 3)
    assert merged.get("a").keys["x"].line == 1  # type: ignore[union-attr]


def test_a_text_is_shown_without_its_invisible_characters_and_not_too_long() -> None:
    assert quoted("a\tb\u200b") == '"a\\tb\\u200b"'
    assert quoted("x" * 100) == f'"{"x" * 59}…"'


def test_a_path_of_a_message_leads_as_far_as_there_is_something() -> None:
    root = parsed("compose:\n  a.b:\n    parts: {x: 1}\n  a: {}\n")
    assert root.at("compose.a.b.parts.x").mark.line == 3
    assert root.at("compose.a.b.parts.gone.y").mark.line == 3
    assert root.at("compose.a").mark.line == 4
    assert root.at("elsewhere") is root


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("true", True),
        ("FALSE", False),
        ("0", 0),
        ("-17", -17),
        ("0x3C", 60),
        ("0o17", 15),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e-3", 0.001),
        ("1E3", 1000.0),
    ],
)
def test_values(text: str, value: Scalar) -> None:
    resolved = tree.resolve(text)
    assert resolved == value and type(resolved) is type(value)


@pytest.mark.parametrize(
    "text",
    ["yes", "no", "on", "off", "y", "n", "1_000", "007", "0b1", "12:30:45", "2026-01-01", "=",
     "nUll", "tRue", "0x", "1e", "--1", "9" * 400],
)  # fmt: skip
def test_what_stays_text(text: str) -> None:
    assert tree.resolve(text) == text


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [("60", "str", "60"), ("60", "int", 60), ("60", "float", 60.0), ("true", "bool", True),
     ("", "null", None)],
)  # fmt: skip
def test_tags_of_the_core_schema(text: str, name: str, value: Scalar) -> None:
    converted = tree.convert(text, f"tag:yaml.org,2002:{name}")
    assert converted == value and type(converted) is type(value)


@pytest.mark.parametrize(
    ("text", "tag"),
    [("x", "tag:yaml.org,2002:int"), ("1", "tag:yaml.org,2002:bool"), ("x", "!mine"),
     ("x", "tag:yaml.org,2002:binary"), ("x", "tag:yaml.org,2002:python/name:os.system")],
)  # fmt: skip
def test_other_tags_are_refused(text: str, tag: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        tree.convert(text, tag)
