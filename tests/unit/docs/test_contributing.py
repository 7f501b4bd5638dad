"""CONTRIBUTING.md's map has every room of the package and of the tests, and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAP = TEXT[TEXT.index("    pipeline/epctx/") : TEXT.index("    tests/")]


def test_the_map_has_every_room() -> None:
    drawn = set(re.findall(r"^      .*?(?=  )", MAP, re.MULTILINE))
    named = {name.strip("/") for line in drawn for name in re.findall(r"[a-z_]+/", line)}
    folders = {p.name for p in (ROOT / "pipeline" / "epctx").iterdir() if p.is_dir()}
    assert named == folders - {"__pycache__"}


def test_the_answers_are_files() -> None:
    answers = re.findall(r"^\| .*\? \| `([^`]+)` \|$", TEXT, re.MULTILINE)
    assert len(answers) == 10
    assert all((ROOT / "pipeline" / "epctx" / answer).is_file() for answer in answers)
