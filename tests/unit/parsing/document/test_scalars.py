"""YAML 1.2's core schema, and the traps of 1.1 that it spares."""

import pytest

from epctx.parsing.document import tree
from epctx.parsing.document.tree import Scalar


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
