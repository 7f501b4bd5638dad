"""SECURITY.md is short, and each promise names suites that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PROMISES = re.findall(r"^\| \*\*.*\| ([^|]+) \|$", TEXT, re.MULTILINE)


def test_every_promise_names_suites_that_exist() -> None:
    assert len(PROMISES) >= 20
    for held_by in PROMISES:
        suites = re.findall(r"`(tests/[\w/.]+)`", held_by)
        assert suites and all((ROOT / suite).exists() for suite in suites), held_by


def test_it_is_two_pages() -> None:
    assert len(TEXT.splitlines()) <= 130 and len(TEXT.split()) <= 1600


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", TEXT):
        assert (ROOT / target).exists()
