"""README.md is true, and short: its commands, options and links are there."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epctx.cli.app import COMMANDS, app

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS_PAGE = (ROOT / "docs" / "reference" / "commands" / "index.md").read_text(encoding="utf-8")
EVERYDAY = re.findall(r"^\| `epctx (\w+)[^`]*` \| (.*) \|$", TEXT, re.MULTILINE)
LISTED = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| `epctx \1[^`]*` \| (.*) \|$", COMMANDS_PAGE, re.M)


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 120


def test_ten_commands_are_everyday_ones() -> None:
    assert len(EVERYDAY) == 10 and {name for name, _ in EVERYDAY} <= set(COMMANDS)


def test_every_command_is_in_the_reference_and_no_other() -> None:
    assert [name for name, _ in LISTED] == list(COMMANDS)
    assert f"<!-- pages below: {' '.join(COMMANDS)} -->" in COMMANDS_PAGE


@pytest.mark.parametrize(("name", "words"), [*EVERYDAY, *LISTED])
def test_the_options_that_are_named_exist(name: str, words: str) -> None:
    options = re.findall(r"--[a-z-]+", words)
    shown = CliRunner().invoke(app, [name, "--help"]).stdout
    assert not [option for option in options if option not in shown]


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert not [t for t in targets if not t.startswith("http") and not (ROOT / t).exists()]
