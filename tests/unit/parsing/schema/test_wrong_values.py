"""Values that are often written where they cannot be."""

from pathlib import Path

import pytest

from epctx.parsing.document import parse
from epctx.parsing.document.tree import Node, Plain
from epctx.parsing.schema import explain


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
