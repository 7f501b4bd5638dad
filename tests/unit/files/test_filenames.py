"""Names that are file names everywhere."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epctx.files import filenames
from epctx.parsing.schema import providers
from epctx.parsing.schema.apply import validator

PATTERN = json.loads(providers.read_schema("manifest"))["$defs"]["name"]


@pytest.mark.parametrize(
    "name", ["a", "A-1", "_x", "9", "x-elite", "v1.2+cpu", "con1", "com", "x" * 100]
)
def test_safe_names(name: str) -> None:
    assert filenames.problem(name) is None


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("", "is empty"),
        ("a b", "U+0020 (SPACE)"),
        ("a/b", 'has the character "/"'),
        ("a\\b", "has the character"),
        ("a\n", "U+000A (a control character)"),
        ("é", "LATIN SMALL LETTER E WITH ACUTE"),
        (".hidden", 'starts with "."'),
        ("-v", 'starts with "-"'),
        ("a.", "ends with a dot"),
        ("CON", "is a device on Windows"),
        ("nul.onnx", "is a device on Windows"),
        ("lpt9.tar.gz", "is a device on Windows"),
        ("x" * 101, "is longer than 100"),
    ],
)
def test_unsafe_names(name: str, what: str) -> None:
    assert what in (filenames.problem(name) or "")
    assert filenames.remedy(name)


@given(st.text(alphabet=st.sampled_from("aZ09_.+-/ éCcOoNnUuLlPpTtMm1\n"), max_size=8))
def test_the_schema_says_the_same_as_a_pattern(name: str) -> None:
    assert validator(PATTERN).is_valid(name) == (filenames.problem(name) is None)


@pytest.mark.parametrize("device", ["con", "PRN", "Aux", "nUL", "cOm1", "LpT0"])
@pytest.mark.parametrize("rest", ["", ".", ".a", "a", ".a.b", "1"])
def test_the_pattern_refuses_devices_in_any_case(device: str, rest: str) -> None:
    name = device + rest
    assert validator(PATTERN).is_valid(name) == (filenames.problem(name) is None)


def test_the_schemas_words_are_those_that_are_explained() -> None:
    assert PATTERN["x-epctx"]["expects"] == filenames.EXPECTS
    assert re.compile(PATTERN["pattern"])


def test_names_that_a_file_system_takes_for_one() -> None:
    assert filenames.fold("Straße") == filenames.fold("STRASSE")
    assert filenames.fold("caf\u00e9") == filenames.fold("CAFE\u0301")
    assert filenames.fold("a") != filenames.fold("b")
