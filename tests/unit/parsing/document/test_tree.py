"""Merging layers, and how places are printed."""

from epctx.parsing.document import build
from epctx.parsing.document.tree import Node, merge, quoted


def tree(text: str) -> Node:
    return build.build(text, file="m.yaml").root


def test_mappings_merge_by_key_and_all_else_replaces() -> None:
    low = tree("a: {x: 1, y: {z: 1}}\nb: [1, 2]\nc: 1\nd: {e: 1}\n")
    high = tree("a: {y: {w: 2}, v: 3}\nb: [3]\nc: null\nd: text\n")
    merged = merge([low, None, high])
    assert merged is not None
    assert merged.plain() == {
        "a": {"x": 1, "y": {"z": 1, "w": 2}, "v": 3},
        "b": [3],
        "c": None,
        "d": "text",
    }


def test_a_merged_value_stands_where_it_came_from() -> None:
    merged = merge([tree("a: {x: 1}\n"), tree("\n\na: {y: 2}\n")])
    assert merged is not None
    x, y = merged.get("a", "x"), merged.get("a", "y")
    assert x is not None and y is not None
    assert (x.mark.line, y.mark.line) == (1, 3)
    assert merged.get("a").keys["x"].line == 1  # type: ignore[union-attr]


def test_a_text_is_shown_without_its_invisible_characters_and_not_too_long() -> None:
    assert quoted("a\tb\u200b") == '"a\\tb\\u200b"'
    assert quoted("x" * 100) == f'"{"x" * 59}…"'


def test_a_path_of_a_message_leads_as_far_as_there_is_something() -> None:
    root = tree("compose:\n  a.b:\n    parts: {x: 1}\n  a: {}\n")
    assert root.at("compose.a.b.parts.x").mark.line == 3
    assert root.at("compose.a.b.parts.gone.y").mark.line == 3
    assert root.at("compose.a").mark.line == 4
    assert root.at("elsewhere") is root
