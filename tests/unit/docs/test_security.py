"""SECURITY.md names tests that exist, and all limits."""

import re
from pathlib import Path

import pytest

from epctx import limits

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))


def test_every_promise_names_its_tests() -> None:
    promised = TEXT.partition("## What is promised")[2].partition("## What is not promised")[0]
    promises = re.split(r"\n(?=\*\*)", promised)[1:]
    assert len(promises) >= 7
    for promise in promises:
        assert re.search(r"\nTests: `tests/", promise), promise


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^ *def {name}\(", source, re.MULTILINE)


def test_all_limits_are_listed_as_they_are() -> None:
    listed = [line for line in TEXT.splitlines() if line.startswith(f"| `{limits.PREFIX}")]
    assert listed == [
        f"| `{limit.variable}` | {limits.amount(limit.default, limit.unit)} | {limit.of} |"
        for limit in limits.ALL
    ]


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)]+)\)", TEXT):
        assert (ROOT / target).exists()
