"""YAML with places: what is understood, what is refused, what is bounded."""

import pytest
import yaml

from epctx import limits
from epctx.errors import InvalidManifest, Violation
from epctx.parsing.document import build as yaml_tree
from epctx.parsing.document.tree import Keys, Node


def build(text: str) -> yaml_tree.Tree:
    return yaml_tree.build(text, file="m.yaml")


def refused(text: str) -> Violation:
    with pytest.raises(InvalidManifest) as caught:
        build(text)
    return caught.value.violations[-1]


def at(root: Node, *keys: str) -> Node:
    node = root.get(*keys)
    assert node is not None
    return node


def test_every_value_knows_its_line_column_and_path() -> None:
    root = build("a: 1\nb:\n  - x\n  - {c: 😀, 'd e': 2}\n").root
    items = at(root, "b").items
    places = {
        (node.mark.line, node.mark.column): node.path
        for node in (at(root, "a"), *items, at(items[1], "c"), at(items[1], "d e"))
    }
    expected: dict[tuple[int, int], Keys] = {
        (1, 4): ("a",),
        (3, 5): ("b", 0),
        (4, 5): ("b", 1),
        (4, 9): ("b", 1, "c"),
        (4, 19): ("b", 1, "d e"),
    }
    assert places == expected
    assert (root.keys["b"].line, root.keys["b"].column) == (2, 1)
    assert (items[1].keys["d e"].line, items[1].keys["d e"].column) == (4, 12)


def test_a_scalar_keeps_how_it_was_written() -> None:
    root = build("a: 0x3C\nb: '60'\nc: |\n  text\n").root
    assert [at(root, k).text for k in "abc"] == ["0x3C", "60", "text\n"]
    assert [at(root, k).quoted for k in "abc"] == [False, True, True]
    assert [at(root, k).value for k in "abc"] == [60, "60", "text\n"]


def test_keys_are_text() -> None:
    assert build("60: a\non: b\nnull: c\n").root.plain() == {"60": "a", "on": "b", "null": "c"}


def test_aliases_repeat_a_value() -> None:
    root = build("a: &x [1, 2]\nb: *x\n").root
    assert root.plain() == {"a": [1, 2], "b": [1, 2]}
    assert at(root, "b").mark.line == 1


def test_an_alias_may_be_a_key() -> None:
    assert build("a: &x k\n*x : 1\n").root.plain() == {"a": "k", "k": 1}


def test_merge_keys() -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: {<<: [*a, *b], x: 9}\n"
    root = build(text).root
    assert at(root, "c").plain() == {"x": 9, "y": 2, "z": 4}
    assert at(root, "c", "z").mark.line == 2


def test_a_quoted_merge_key_is_a_key() -> None:
    assert build("a: {'<<': 1}").root.plain() == {"a": {"<<": 1}}


@pytest.mark.parametrize(
    ("text", "line", "path", "what"),
    [
        ("a: 1\nb: {c: 1, c: 2}\n", 2, "b.c", "is there twice, first in line 2"),
        ("a: !!set {x}\n", 1, "a", 'has the tag "tag:yaml.org,2002:set"'),
        ("a: !!int x\n", 1, "a", 'has the tag "tag:yaml.org,2002:int"'),
        ("a: .nan\n", 1, "a", "is .nan, which is not a finite number"),
        ("a: {<<: 1}\n", 1, 'a["<<"]', "merges a value that is not a mapping"),
        ("a: &a {x: 1}\nb: {<<: *a, <<: *a}\n", 2, 'b["<<"]', "is there twice, first in line 2"),
    ],
)
def test_what_is_told_beside_the_rest(text: str, line: int, path: str, what: str) -> None:
    (violation,) = build(text).violations
    assert (violation.line, violation.path, violation.what) == (line, path, what)
    assert violation.remedy


def test_the_first_of_duplicates_counts() -> None:
    assert build("a: 1\na: {b: [2]}\nc: 3\n").root.plain() == {"a": 1, "c": 3}


def test_what_is_refused_is_broken() -> None:
    tree = build("a: !mine {b: 1}\nc: .inf\nd: 1\n")
    assert tree.broken == {at(tree.root, "a"), at(tree.root, "c")}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        ("a: 1\n---\nb: 2\n", "a second document starts"),
        ("a: *x\n", "*x has no &x before it"),
        ("a: &x {b: *x}\n", "*x stands inside &x"),
        ("? [a]\n: 1\n", "a key is a list or a mapping"),
        ("a: &x [1]\n*x : 2\n", "a key is a list or a mapping"),
        ("a:\n\tb: 1\n", "is indented with a tab"),
        ("a: `b`\n", "a value cannot start with `"),
        ("a: b: c\n", "a colon stands where no key is allowed"),
        ("a: [b\n", "the file ends before what was opened in line 1 is closed"),
        ("a: '\n", "the file ends before what was opened in line 1 is closed"),
        ("a: 1\nb: [\n", "the file ends before a bracket is closed"),
        ("a: \x00\n", "has the control character U+0000"),
        (
            'a: "\\q"\n',
            "is not valid YAML: while parsing a quoted scalar, found unknown escape character",
        ),
    ],
)
def test_what_is_no_manifest_at_all(text: str, what: str) -> None:
    violation = refused(text)
    assert violation.what == what
    assert violation.remedy
    assert violation.line >= 1 or not text


def test_a_control_character_is_placed_in_characters_not_in_bytes() -> None:
    violation = refused("\u0451: 1\n\u0451\u0451: \x0b")
    assert violation.what == "has the control character U+000B"
    assert (violation.line, violation.column) == (2, 5)


def test_depth_is_bounded_before_it_is_built() -> None:
    deep = limits.MANIFEST_DEPTH.value
    assert build("[" * deep + "]" * deep).root.kind == "list"
    assert "nested deeper" in refused("[" * 200_000).what


def test_depth_is_bounded_through_aliases() -> None:
    half = limits.MANIFEST_DEPTH.value // 2 + 1
    text = f"a: &a {'[' * half}{']' * half}\nb: {'[' * half}*a{']' * half}\n"
    assert "nested deeper" in refused(text).what


def test_aliases_of_aliases_are_bounded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    violation = refused("\n".join(lines))
    assert "values, aliases expanded" in violation.what
    assert violation.line == 5


def test_libyaml_is_used_where_it_is_there() -> None:
    assert yaml.__with_libyaml__ == (yaml_tree._PARSER is not yaml.SafeLoader)
