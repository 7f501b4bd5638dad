"""README.md is true: its commands, options, exit codes and manifest are those of the program."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epctx import api, errors
from epctx.cli.app import COMMANDS, app

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^\| `epctx (\w+)[^`]*` \| (.*) \|$", TEXT, re.MULTILINE)


def test_every_command_is_listed_and_no_other() -> None:
    assert [name for name, _ in LISTED] == list(COMMANDS)


@pytest.mark.parametrize(("name", "words"), LISTED)
def test_the_options_that_are_named_exist(name: str, words: str) -> None:
    options = re.findall(r"--[a-z-]+", words)
    shown = CliRunner().invoke(app, [name, "--help"]).stdout
    assert not [option for option in options if option not in shown]


def test_every_exit_code_is_listed_and_no_other() -> None:
    listed = re.findall(r"^\| (\d+) \| ", TEXT, re.MULTILINE)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.exit_code for kind in kinds if issubclass(kind, errors.EpctxError)}
    assert [int(code) for code in listed] == [0, *sorted(codes)]


def test_the_manifest_is_valid(tmp_path: Path) -> None:
    found = re.search(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None
    path = tmp_path / "readme.yaml"
    path.write_text(found[1], encoding="utf-8")
    assert not api.validate(path, models=False)


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert not [t for t in targets if not t.startswith("http") and not (ROOT / t).exists()]
