"""One version in all that names epctx's, and first commands that work before it is released."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from epctx import __version__

ROOT = Path(__file__).parents[2]
WORKFLOWS = [
    ROOT / "action.yml",
    *(ROOT / ".github" / "workflows").glob("*.yml"),
    *(ROOT / "examples" / "ci").glob("*.yml"),
]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
NAMED = re.compile(
    r"epctx(?:\[[^\]]*\])?==(?P<pin>\d[\w.]*)"
    r"|epctx/\.github/workflows/build\.yml@v(?P<tag>\d[\w.]*)"
    r"|^\s+rev: v(?P<rev>\d[\w.]*)",
    re.MULTILINE,
)
FIRST = ["README.md", "docs/index.md", "docs/tutorial.md", "docs/howto/load.md"]
"""Pages that begin by installing epctx."""


def named(path: Path) -> list[str]:
    """Versions of epctx that a file names."""
    found = NAMED.finditer(path.read_text(encoding="utf-8"))
    return [version for match in found for version in match.groups() if version]


def test_every_version_that_is_named_is_this_one() -> None:
    versions = {path.relative_to(ROOT).as_posix(): named(path) for path in (*PAGES, *WORKFLOWS)}
    others = {name: set(found) - {__version__} for name, found in versions.items()}
    assert {name: found for name, found in others.items() if found} == {}
    assert {name for name, found in versions.items() if found} >= {
        *("docs/howto/install.md", "action.yml", ".github/workflows/build.yml", "docs/howto/ci.md"),
        *("examples/ci/matrix.yml", "examples/ci/release.yml", "docs/shared-cache.md"),
    }


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[([^\]]+)\]", text, re.MULTILINE)[0] == __version__
    page = ROOT / "docs" / f"changes-{__version__.rpartition('.')[0]}.md"
    assert page.read_text(encoding="utf-8").startswith(f"# What changed up to {__version__}\n")


@pytest.mark.parametrize("path", [*PAGES, *WORKFLOWS], ids=lambda path: path.name)
def test_what_holds_once_it_is_released_says_so(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not named(path) or re.search(r"\b(once|until)\b.{0,60}\breleased\b", text)


def test_first_commands_install_a_checkout() -> None:
    """Without an index, without epctx being there: only what a checkout has is installed."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in FIRST]
    commands = [
        re.search(r"^\$ (?:python -m )?(pip install .*?)(?: +#.*)?$", t, re.M) for t in texts
    ]
    for command in {match[1] for match in commands if match}:
        offline = ["--dry-run", "--quiet", "--no-index", "--no-deps", "--ignore-installed"]
        options = [*shlex.split(command)[1:], *offline, "--no-build-isolation"]
        ran = subprocess.run(
            [sys.executable, "-m", "pip", *options], cwd=ROOT, capture_output=True, text=True
        )
        assert ran.returncode == 0, f"{command}\n{ran.stderr}"
    assert all(commands)
