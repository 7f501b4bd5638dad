"""docs/howto/install.md: what it installs is there, and a checkout builds without make."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import pages
from tests.kit.command_line import epctx

ROOT = Path(__file__).parents[2]
LINES = pages.lines((ROOT / "docs" / "howto" / "install.md").read_text(encoding="utf-8"))
ACTIVATED = "python -m venv .venv && . .venv/bin/activate"


@pytest.mark.parametrize(
    "line", [line for line in LINES if "pip install" in line and "https:" not in line]
)
def test_what_is_installed_is_there(line: str, tmp_path: Path) -> None:
    pages.install(line, tmp_path)


def test_a_checkout_builds_without_make(tmp_path: Path) -> None:
    """As on Windows, in the environment that is there."""
    start = LINES.index("python -m venv .venv")
    _, installed, models, build = LINES[start : start + 4]
    assert shlex.split(installed)[:4] == [".venv/bin/python", "-m", "pip", "install"]
    command = [sys.executable, *shlex.split(models)[1:], str(tmp_path / "models")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    _, verb, manifest = shlex.split(build)
    shutil.copy(ROOT / manifest, tmp_path / "m.yaml")
    ran = epctx(verb, "m.yaml", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_an_environment_is_made_and_used(tmp_path: Path) -> None:
    assert ACTIVATED in LINES
    ran = subprocess.run(
        ["bash", "-c", f"{ACTIVATED} && python -c 'import sys; print(sys.prefix)'"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(ran.stdout.strip()) == tmp_path / ".venv"
